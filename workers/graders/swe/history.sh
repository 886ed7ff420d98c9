# Builds a repository anew from one commit. Arguments: repository, commit, `look` = change nothing. Run by `history.py`. Prints, a NUL each:
#   commits N | tag NAME | submodule HASH PATH | outside FOLDER
# Exit code 3: there is no such repository or commit; 4: something is left that the commit does not reach.
# Without `set -u`: until bash 4.4 an empty list counts as unset.
repo=$1 wanted=$2
PATH=/usr/bin:/bin:/usr/local/bin:$PATH
for name in "${!GIT_@}"; do unset "$name"; done
export LC_ALL=C GIT_TERMINAL_PROMPT=0 GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_PAGER=cat GIT_CONFIG_COUNT=4
export GIT_CONFIG_KEY_0=core.fsmonitor GIT_CONFIG_VALUE_0=false GIT_CONFIG_KEY_1=core.hooksPath GIT_CONFIG_VALUE_1=/dev/null
export GIT_CONFIG_KEY_2=gc.auto GIT_CONFIG_VALUE_2=0 GIT_CONFIG_KEY_3=core.logAllRefUpdates GIT_CONFIG_VALUE_3=false
say() { printf '%s %s\0' "$1" "$2"; }
stop() { echo "$2" >&2; exit "$1"; }

cd -- "$repo" && [ -e .git ] || stop 3 "no repository at $repo"
# Said outright, so that git does not ask who owns the folder. A file `.git` leads to the folder of a submodule, which is all of it, or of
# a work tree, whose objects and refs are in a folder shared with others.
export GIT_DIR=$PWD/.git GIT_WORK_TREE=$PWD
own=$(git rev-parse --absolute-git-dir) && shared=$(cd -- "$(git rev-parse --git-common-dir)" && pwd -P) || stop 3 "$repo cannot be read"
base=$(git rev-parse --verify -q "$wanted^{commit}") || stop 3 "commit $wanted is not in $repo"
if [ "$shared" = "$(cd -- "$own" && pwd -P)" ]; then place=$own; else place=$PWD/.git; say outside "$shared"; fi
for folder in "$shared"/worktrees/*/; do
    [ -f "$folder/gitdir" ] && [ "$place" = "$own" ] && say outside "$(dirname -- "$(cat -- "$folder/gitdir")")"
done
[ -f "$shared/objects/info/alternates" ] && while IFS= read -r line; do say outside "$line"; done < "$shared/objects/info/alternates"
checked_out() { # submodules that are there: hash and path
    git ls-tree -r -z "$base" | while IFS= read -r -d '' entry; do
        path=${entry#*$'\t'}
        case $entry in 160000*) [ -e "$path/.git" ] || continue ;; *) continue ;; esac
        read -r _ _ hash <<< "${entry%%$'\t'*}"
        printf '%s %s\0' "$hash" "$path"
    done
}
if [ "$3" = look ]; then
    checked_out | while IFS= read -r -d '' entry; do say submodule "$entry"; done
    exit 0
fi
rm -f -- "$shared/info/grafts"
if [ "$(git rev-parse --verify -q 'HEAD^{commit}')" != "$base" ]; then
    git checkout -q -f --detach "$base" || stop 3 "commit $wanted of $repo cannot be checked out"
fi
branch=$(git symbolic-ref -q HEAD)

format=()
[ ${#base} -eq 64 ] && format=(--object-format=sha256)
new=$(mktemp -d "$(dirname -- "$place")/.rollstream-XXXXXXXX") || stop 5 "no room for a new repository"
trap 'rm -rf -- "$new"' EXIT
env -u GIT_WORK_TREE GIT_DIR="$new" git init -q --bare --template= "${format[@]}" >/dev/null || stop 5 "git init failed"

# Tags that are not later: what they name is reached, and they were not written after it.
born=$(git log -1 --format=%ct "$base")
git for-each-ref --merged "$base" --format='%(refname) %(objectname) %(taggerdate:unix)' refs/tags |
    while read -r name hash when; do
        if [ -z "$when" ] || [ "$when" -le "$born" ]; then printf '%s %s\n' "$hash" "$name"; fi
    done > "$new/tags"
# All that is reached, in one pack. From here on nothing of the old folder is needed but a few files.
{ echo "$base"; cut -d ' ' -f 1 "$new/tags"; } | git rev-list --objects --stdin | cut -d ' ' -f 1 > "$new/reached"
[ "${PIPESTATUS[1]}" -eq 0 ] || stop 5 "the history of $repo has holes"
git pack-objects -q --delta-base-offset "$new/objects/pack/pack" < "$new/reached" > /dev/null || stop 5 "the history of $repo has holes"
for name in description hooks info/exclude info/attributes info/sparse-checkout; do
    if [ -e "$shared/$name" ]; then
        mkdir -p -- "$(dirname -- "$new/$name")" && cp -RP -- "$shared/$name" "$(dirname -- "$new/$name")/" || stop 5 "$name cannot be kept"
    fi
done
if [ -f "$shared/shallow" ]; then # a clone that was cut at some depth stays cut there
    git rev-list "$base" | sort > "$new/commits"
    sort "$shared/shallow" | comm -12 - "$new/commits" > "$new/shallow"
    [ -s "$new/shallow" ] || rm -f -- "$new/shallow"
fi
cp -- "$shared/config" "$new/config"
git config --file "$new/config" --bool core.bare false
[ "$place" = "$own" ] || git config --file "$new/config" --unset-all core.worktree
git config --file "$new/config" --name-only -z --get-regexp '^(remote|branch|url|credential|https?|include|includeif|svn-remote)\.' |
    while IFS= read -r -d '' name; do git config --file "$new/config" --unset-all "$name"; done
git config --file "$new/config" --unset-all extensions.partialclone

checked_out | while IFS= read -r -d '' entry; do
    path=${entry#* }
    say submodule "$entry"
    # the git folder of a submodule lies inside ours, and stays where it is found
    folder=$(env -u GIT_WORK_TREE GIT_DIR="$PWD/$path/.git" git rev-parse --absolute-git-dir) || continue
    case $folder in
    "$own"/modules/*)
        kept=$new/${folder#"$own"/}
        if [ -d "$folder" ]; then mkdir -p -- "$(dirname -- "$kept")" && mv -- "$folder" "$kept" || stop 5 "$folder cannot be kept"; fi
        ;;
    esac
done || exit 5

# The exchange, and what points into it. The lists are not to be found later.
tags=$(cat -- "$new/tags") reached=$(sort -u -- "$new/reached")
rm -f -- "$new/tags" "$new/reached" "$new/commits"
case $branch in refs/heads/*) [ "$(git rev-parse --verify -q "$branch")" = "$base" ] || branch=refs/heads/main ;; esac
rm -rf -- "$place" && mv -- "$new" "$place" || stop 5 "the old repository cannot be replaced"
if [ -n "$branch" ]; then
    git update-ref "$branch" "$base" && git symbolic-ref HEAD "$branch" || stop 5 "no branch at the commit"
else
    git update-ref --no-deref HEAD "$base" || stop 5 "no HEAD at the commit"
fi
[ -z "$tags" ] || while read -r hash name; do
    git update-ref "$name" "$hash" || stop 5 "tag $name cannot be kept"
    say tag "${name#refs/tags/}"
done <<< "$tags"
git read-tree --reset "$base" || stop 5 "no index of the commit"
git update-index -q --refresh >/dev/null
git pack-refs --all

[ "$(git cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u)" = "$reached" ] || stop 4 "objects are left in $repo"
[ "$(git rev-list --objects --all HEAD | cut -d ' ' -f 1 | sort -u)" = "$reached" ] || stop 4 "refs are left in $repo"
say commits "$(git rev-list --count "$base")"
