"""`covey completion`: a script by which a shell completes the command line."""

from __future__ import annotations

import argparse
import sys
from typing import Any

_BASH = r"""# Completion of covey in bash. In ~/.bashrc: source <(covey completion bash)
_covey() {
  local line=${COMP_LINE:0:COMP_POINT}
  local word=${line##*[[:space:]]}
  local split=${word##*["$COMP_WORDBREAKS"]} # what bash takes for the word: it splits at = and :
  mapfile -t COMPREPLY < <("$1" completion bash --line "$line" 2>/dev/null)
  COMPREPLY=("${COMPREPLY[@]#"${word%"$split"}"}")
  case ${COMPREPLY[0]-} in *[=./]) compopt -o nospace ;; esac
}
complete -o default -F _covey covey
"""
_ZSH = r"""#compdef covey
# Completion of covey in zsh. In ~/.zshrc, after compinit: source <(covey completion zsh)
_covey() {
  local line
  local -a whole open
  for line in ${(f)"$($words[1] completion zsh --line "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)"}; do
    line=${line//:/\\:}
    if [[ ${line%%$'\t'*} == *[=./] ]]; then
      open+=(${line/$'\t'/:})
    else
      whole+=(${line/$'\t'/:})
    fi
  done
  if (( $#whole + $#open )); then
    _describe -V covey whole -- open -S ''
  else
    compset -P '*='
    _files
  fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _covey "$@"
else
  compdef _covey covey
fi
"""
_FISH = r"""# Completion of covey in fish. In ~/.config/fish/config.fish: covey completion fish | source
function __covey_complete
    set -l command (commandline -opc)[1]
    set -l found ($command completion fish --line (commandline -pc | string collect) 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        set -l parts (string match -r '^(.*=|)(.*)$' -- (commandline -ct))
        printf '%s\n' $parts[2](__fish_complete_path $parts[3])
    end
end
complete -c covey -f -a '(__covey_complete)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        help="complete the command line in bash, zsh or fish",
        description=(
            "Print a script by which the shell completes commands, options, keys, config groups and their options, and "
            "recipes. Its first lines say where it goes."
        ),
    )
    parser.add_argument("shell", choices=_SCRIPTS)
    parser.add_argument("--line", metavar="LINE", help=argparse.SUPPRESS)  # the scripts' own: up to the cursor
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.line is None:
        print(_SCRIPTS[arguments.shell], end="")
        return 0
    from covey.cli.completion import candidates
    from covey.cli.main import parsers

    for word, about in candidates(arguments.line, parsers()[0]):
        sys.stdout.write(word if arguments.shell == "bash" or not about else f"{word}\t{about}")
        sys.stdout.write("\n")
    return 0
