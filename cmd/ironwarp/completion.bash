# bash completion for ironwarp
_ironwarp() {
  local cur=${COMP_WORDS[COMP_CWORD]} candidate
  local words=("${COMP_WORDS[@]:0:COMP_CWORD}")
  [[ $cur == -* ]] && words+=("$cur")
  COMPREPLY=()
  # A candidate may be a name that a peer has chosen: `compgen -W` would expand it.
  while IFS= read -r candidate; do
    [[ $candidate == "$cur"* ]] && COMPREPLY+=("$(printf %q "$candidate")")
  done < <(IRONWARP_COMPLETE=$cur "${words[@]}" --generate-bash-completion 2>/dev/null)
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
  return 0
}
complete -o bashdefault -o default -F _ironwarp ironwarp
