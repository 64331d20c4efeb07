# bash completion for ironwarp
_ironwarp() {
  local cur=${COMP_WORDS[COMP_CWORD]}
  local words=("${COMP_WORDS[@]:0:COMP_CWORD}")
  [[ $cur == -* ]] && words+=("$cur")
  local IFS=$'\n'
  COMPREPLY=($(compgen -W "$(IRONWARP_COMPLETE=$cur "${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur"))
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
  return 0
}
complete -o bashdefault -o default -F _ironwarp ironwarp
