# Sourced once by each persistent shell (workers/sandbox/shell.py tells the protocol). bash 3.2 and later.
# __rs_dir is set by the line that sources this; descriptor 198 is the control pipe.
set +H +o history
PS1= PS2= PS0=
unset PROMPT_COMMAND HISTFILE MAIL MAILCHECK TMOUT
shopt -u checkwinsize
__rs_done= __rs_text= __rs_rc=0

# Loads the text of a command that is in a file.
__rs_load() {
    IFS= builtin read -r -d '' __rs_text <"$__rs_dir/command"
    return 0
}

# Prints the fence before the output of a command whose text is loaded; gives it the $? of the command before.
__rs_begin() {
    builtin export -n __rs_text
    builtin printf '\001\002%ss\003' "$1" >/dev/tty
    return "$__rs_rc"
}

# Reports exit code and folder on the control pipe, then prints the fence after the output. A second call with the same number does nothing.
__rs_end() {
    local rc=$?
    builtin set +ev
    [[ $1 == "$__rs_done" ]] && return "$rc"
    __rs_done=$1 __rs_rc=$rc
    builtin printf '%s\0%s\0%s\0\0' "$1" "$rc" "${PWD-}" >&198
    builtin printf '\001\002%se\003' "$1" >/dev/tty
    return "$rc"
}
