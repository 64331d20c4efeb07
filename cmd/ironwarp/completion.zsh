#compdef ironwarp
_ironwarp() {
  local -a words_before candidates open
  words_before=(${words[1,CURRENT-1]})
  [[ ${words[CURRENT]} == -* ]] && words_before+=(${words[CURRENT]})
  candidates=("${(@f)$(IRONWARP_COMPLETE=${words[CURRENT]} ${words_before} --generate-bash-completion 2>/dev/null)}")
  open=(${(M)candidates:#*/})
  if (( ${#open} )); then
    compadd -S '' -a open
  elif [[ -n ${candidates[1]} ]]; then
    _describe 'values' candidates
  else
    _files
  fi
}
compdef _ironwarp ironwarp
