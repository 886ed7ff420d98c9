# Applies a patch to a work tree. Arguments: what to do, the repository, then name and size of each part of standard input, one part
# behind the other. Run by `patch_apply.py`.
#
#   first      links, paths (NUL after each), whole.patch   link PATH | apply | no, what git said
#   sections   1.patch, 1.name, 2.patch, 2.name, ...        a line each: forwards | backwards | no, lines, lines that end in CR
#   last       paths, whole.patch, text.patch, binary.patch apply | 3way | patch | no, what each said
#
# Only the work tree is written to: the index and the objects that `--3way` needs stand in a folder of their own, with the input.
set -u
what=$1 repo=$2
shift 2
cd -- "$repo" || exit 9
# the image's own git before whatever a path to a project's tools might hold
PATH=/usr/bin:/bin:/usr/local/bin:$PATH
place=$(mktemp -d /tmp/rollstream-XXXXXXXX) || exit 9
trap 'rm -rf -- "$place"' EXIT
cat > "$place/input" || exit 9
at=1
while [ $# -gt 0 ]; do
    tail -c "+$at" "$place/input" | head -c "$2" > "$place/$1" || exit 9
    at=$((at + $2))
    shift 2
done
export LC_ALL=C GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 GIT_LITERAL_PATHSPECS=1 GIT_CONFIG_COUNT=3
export GIT_CONFIG_KEY_0=core.fsmonitor GIT_CONFIG_VALUE_0=false GIT_CONFIG_KEY_1=core.hooksPath GIT_CONFIG_VALUE_1=/dev/null
export GIT_CONFIG_KEY_2=apply.whitespace GIT_CONFIG_VALUE_2=nowarn
if [ -e .git ]; then
    # said outright, so that git neither asks who owns it nor finds another repository around it
    export GIT_DIR=$PWD/.git GIT_WORK_TREE=$PWD
else
    export GIT_CEILING_DIRECTORIES=${PWD%/*}
fi
apply() { git apply --whitespace=nowarn "$@"; }

is_file() { [ -L "$1" ] || { [ -e "$1" ] && [ ! -d "$1" ]; }; }

links() {
    while IFS= read -r -d '' path; do
        if [ -L "$path" ]; then printf 'link %q\n' "$path"; exit 0; fi
    done < "$place/links"
}

# `git apply` looks at everything first, but what it then cannot write (a folder stands there, no room) it leaves half done.
keep() {
    mkdir -p "$place/was" && : > "$place/there" && : > "$place/absent" || exit 9
    while IFS= read -r -d '' path; do
        if is_file "$path"; then printf './%s\0' "$path" >> "$place/there"; fi
        folder=$path
        while [ "$folder" != "${folder%/*}" ] && folder=${folder%/*} && [ ! -e "./$folder" ]; do
            printf './%s\0' "$folder" >> "$place/absent"
        done
    done < "$place/paths"
    [ -s "$place/there" ] || return 0
    xargs -0 cp -pP --parents -t "$place/was" -- < "$place/there" 2>/dev/null && return 0
    while IFS= read -r -d '' path; do # without GNU's cp
        mkdir -p -- "$(dirname -- "$place/was/$path")" && cp -pP -- "$path" "$place/was/$path" || exit 9
    done < "$place/there"
}

restore() {
    while IFS= read -r -d '' path; do
        if is_file "$place/was/$path"; then
            mkdir -p -- "$(dirname -- "$path")" && rm -f -- "$path" && cp -pP -- "$place/was/$path" "$path" || exit 9
        elif is_file "$path"; then
            rm -f -- "$path" || exit 9
        fi
    done < "$place/paths"
    while IFS= read -r -d '' folder; do rmdir -- "$folder" 2>/dev/null; done < "$place/absent"
    return 0
}

three_way() {
    objects=$(cd "$(git rev-parse --git-path objects)" && pwd) || return 1
    mkdir "$place/objects" || return 1
    export GIT_INDEX_FILE=$place/index GIT_OBJECT_DIRECTORY=$place/objects GIT_ALTERNATE_OBJECT_DIRECTORIES=$objects
    git read-tree HEAD && git update-index --add --remove -z --stdin < "$place/paths" && apply --3way "$place/whole.patch"
    code=$?
    unset GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES
    return $code
}

fuzzy() {
    command -v patch >/dev/null || { echo "patch is not installed"; return 1; }
    if [ -s "$place/binary.patch" ]; then apply "$place/binary.patch" || return 1; fi
    [ -s "$place/text.patch" ] || return 0
    # --posix is not said: git's headers (modes, new and deleted files) are wanted
    patch --batch --forward --fuzz=5 -p1 --no-backup-if-mismatch --reject-file=- --input="$place/text.patch" </dev/null
}

case $what in
first)
    links
    keep
    if apply "$place/whole.patch" >"$place/said" 2>&1; then echo apply; exit 0; fi
    restore
    echo no
    tail -c 2000 "$place/said"
    ;;
sections)
    for ((i = 1; ; i++)); do
        [ -e "$place/$i.patch" ] || break
        if apply --check "$place/$i.patch" 2>/dev/null; then way=forwards
        elif apply --check --reverse "$place/$i.patch" 2>/dev/null; then way=backwards
        else way=no; fi
        IFS= read -r -d '' name < "$place/$i.name"
        lines=0 ended=0
        if [ -f "$name" ] && [ ! -L "$name" ]; then lines=$(grep -c '' -- "$name"); ended=$(grep -c $'\r$' -- "$name"); fi
        echo "$way $lines $ended"
    done
    ;;
last)
    keep
    if apply "$place/whole.patch" >"$place/said" 2>&1; then echo apply; exit 0; fi
    restore
    if [ -e .git ] && three_way >"$place/said3" 2>&1; then echo 3way; exit 0; fi
    restore
    if fuzzy >"$place/saidp" 2>&1; then echo patch; exit 0; fi
    restore
    echo no
    for said in said said3 saidp; do
        echo "[$said]"
        if [ -s "$place/$said" ]; then tail -c 1500 "$place/$said"; fi
    done
    ;;
esac
