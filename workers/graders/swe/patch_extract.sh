# Prints what differs between a work tree and a commit as one patch. Arguments: repository, commit, bytes the patch may have.
# Run by `patch_extract.py`. Exit code 3: the commit cannot be read; 4: too large. On standard error, a NUL behind each:
#   left WHAT     a change that the patch does not have, and why
# Without `set -u`: until bash 4.4 an empty list counts as unset.
repo=$1 base=$2 most_bytes=$3
most_nested=64 most_large=64
PATH=/usr/bin:/bin:/usr/local/bin:$PATH
cd -- "$repo" 2>/dev/null || { printf 'left the folder is gone\0' >&2; exit 3; }
repo=$PWD
for name in "${!GIT_@}"; do unset "$name"; done
place=$(mktemp -d /tmp/rollstream-XXXXXXXX) || exit 5
trap 'rm -rf -- "$place"' EXIT
# Nothing of the repository's own settings, nor the user's (git before 2.32 looks for these in HOME alone): a git folder beside it, made for this moment.
export HOME=$place XDG_CONFIG_HOME=$place GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 GIT_CONFIG_GLOBAL=$place/.gitconfig LC_ALL=C
export GIT_TERMINAL_PROMPT=0 GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_PAGER=cat
cat > "$place/.gitconfig" <<'CONFIG'
[core]
	fsmonitor = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	quotePath = true
[safe]
	directory = *
[protocol]
	allow = never
[gc]
	auto = 0
CONFIG
export GIT_DIR=$place/git
format=()
[ ${#base} -eq 64 ] && format=(--object-format=sha256)
git init -q --bare --template= "${format[@]}" "$GIT_DIR" >/dev/null || exit 5
mkdir -p "$GIT_DIR/info" "$GIT_DIR/objects/info"
nothing=$(git hash-object -t tree -w --stdin </dev/null) || exit 5
borrowed=0

left() { printf 'left %s: %s\0' "$1" "$2" >&2; }

# Lets git read the objects of the repository in a folder. Where they are is read from `.git` without git.
borrow() {
    local git_folder=$1/.git common line
    if [ -f "$git_folder" ]; then
        IFS= read -r line < "$git_folder"
        git_folder=${line#gitdir: }
        case $git_folder in /*) ;; *) git_folder=$1/$git_folder ;; esac
    fi
    common=$git_folder
    if [ -f "$git_folder/commondir" ]; then
        IFS= read -r line < "$git_folder/commondir"
        case $line in /*) common=$line ;; *) common=$git_folder/$line ;; esac
    fi
    [ -d "$common/objects" ] || return 1
    borrowed=$((borrowed + 1))
    ln -s "$(cd -- "$common/objects" && pwd -P)" "$place/borrowed$borrowed" || return 1
    printf '%s\n' "$place/borrowed$borrowed" >> "$GIT_DIR/objects/info/alternates"
}

# A folder as a work tree of its own: its files against a tree. Arguments: folder, its path in the repository with a slash behind or
# nothing, tree, file of further ignore rules.
difference() {
    local folder=$1 prefix=$2 tree=$3 rules=$4 path without=() ignoring=(-c core.excludesFile="$4")
    export GIT_WORK_TREE=$folder GIT_INDEX_FILE=$place/index.$((++indexes))
    cd -- "$folder" || return 1
    git read-tree "$tree" || return 1
    # nested repositories have a turn of their own; submodules that are not checked out are no files
    {
        for path in "${nested[@]}"; do
            case $path in "$prefix"?*) path=${path#"$prefix"} ;; *) continue ;; esac
            printf '%s\0' "$path"
            git --literal-pathspecs ls-files -z -- "$path/"
        done
        git ls-files -s -z | while IFS= read -r -d '' path; do
            case $path in 160000*) printf '%s\0' "${path#*$'\t'}" ;; esac
        done
    } | git update-index -z --force-remove --stdin || return 1
    for path in "${nested[@]}"; do
        case $path in "$prefix"?*) without+=(":(exclude,literal)${path#"$prefix"}") ;; esac
    done
    while IFS= read -r -d '' path; do
        path=${path#./}
        is_large "$path" "$prefix" "${ignoring[@]}" && without+=(":(exclude,literal)$path")
        [ ${#without[@]} -gt $((most_large + most_nested)) ] && exit 4
    done < <(find . -name .git -prune -o -type f -size +"$most_bytes"c -print0)
    tree=$(git write-tree) || return 1
    git "${ignoring[@]}" add -A --ignore-errors -- . "${without[@]}" 2> "$place/errors"
    while IFS= read -r path; do
        case $path in "error: "*) left "${prefix:-.}" "${path#error: }" ;; esac
    done < <(head -c 20000 "$place/errors")
    git diff-index --cached -p --binary --full-index --no-renames --no-color --no-ext-diff --no-textconv --ignore-submodules=all \
        --src-prefix="a/$prefix" --dst-prefix="b/$prefix" "$tree" | head -c $((most_bytes + 1)) >> "$place/patch"
    [ "${PIPESTATUS[0]}" -eq 0 ] || [ "$(wc -c < "$place/patch")" -gt "$most_bytes" ] || return 1
    [ "$(wc -c < "$place/patch")" -le "$most_bytes" ] || exit 4
}

# Whether a file above the bound is to be left alone; says so when that leaves a change out.
is_large() {
    local path=$1 prefix=$2 tracked
    shift 2
    tracked=$(git --literal-pathspecs ls-files -s -- "$path" | { read -r _ hash _; echo "${hash:-}"; })
    if [ -z "$tracked" ]; then
        git "$@" check-ignore -q -- "./$path" || left "$prefix$path" "larger than a patch may be"
    elif [ "$tracked" != "$(git hash-object -- "$path")" ]; then
        left "$prefix$path" "larger than a patch may be"
    fi
    return 0
}

indexes=0 nested=() trees=() folders=() skipped=()
borrow "$repo" || { left . "there is no git folder"; exit 3; }
git cat-file -e "$base^{tree}" 2>/dev/null || { left . "commit $base cannot be read"; exit 3; }
[ -f .git/info/exclude ] && head -c 65536 .git/info/exclude > "$GIT_DIR/info/exclude"
while IFS= read -r -d '' path; do
    path=${path#./} path=${path%/.git}
    [ "$path" = .git ] && continue
    if [ ${#nested[@]} -ge $most_nested ]; then left "$path" "more than $most_nested nested repositories"; break; fi
    nested+=("$path")
done < <(find . -name .git -prune -print0 | LC_ALL=C sort -z)

difference "$repo" "" "$base^{tree}" /dev/null || { left . "the commit or the files cannot be read"; exit 3; }
for path in "${nested[@]}"; do
    # the nearest repository around it that has had its turn says what was here
    outer="" outer_tree="$base^{tree}" rules=/dev/null
    for ((i = 0; i < ${#folders[@]}; i++)); do
        case $path in "${folders[i]}"/*) outer=${folders[i]}/ outer_tree=${trees[i]} ;; esac
    done
    for skip in "${skipped[@]}"; do
        case $path in "$skip"/*) skipped+=("$path"); continue 2 ;; esac
    done
    inner=${path#"$outer"}
    read -r _ kind hash <<< "$(git ls-tree -z "$outer_tree" -- "$inner" | { IFS= read -r -d '' entry; printf '%s' "${entry%%$'\t'*}"; })"
    case $kind in
    commit)
        borrow "$repo/$path"
        if ! git cat-file -e "$hash^{tree}" 2>/dev/null; then
            left "$path" "the commit of this submodule cannot be read"
            skipped+=("$path")
            continue
        fi
        tree=$hash^{tree}
        ;;
    tree) tree=$hash rules=$repo/.gitignore ;;
    *)
        tree=$nothing rules=$repo/.gitignore
        cd -- "$repo" || exit 5
        if GIT_WORK_TREE=$repo GIT_INDEX_FILE=$place/index.1 git check-ignore -q -- "./$path"; then skipped+=("$path"); continue; fi
        ;;
    esac
    folders+=("$path") trees+=("$tree")
    difference "$repo/$path" "$path/" "$tree" "$rules" || left "$path" "the files of this nested repository cannot be read"
done
cat "$place/patch"
