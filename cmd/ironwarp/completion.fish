# fish completion for ironwarp
function __ironwarp
    set -l words (commandline -opc)
    set -l cur (commandline -ct)
    string match -q -- '-*' $cur; and set -a words $cur
    IRONWARP_COMPLETE=$cur $words --generate-bash-completion 2>/dev/null
end
complete -c ironwarp -f -a '(__ironwarp)'
for flag in config socket psk-file cert-file key-file ca-file
    complete -c ironwarp -l $flag -r -F
end
