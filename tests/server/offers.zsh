# zsh -f offers.zsh FOLDER LINE: what an interactive zsh offers for LINE, one a line, with the completion functions in FOLDER.
zmodload zsh/zpty
offers=$(mktemp)
zpty shell zsh -f
zpty -w shell "fpath=(${(q)1} \$fpath); autoload -Uz compinit && compinit -u -D"
zpty -w shell "compadd() { local -a found; builtin compadd -O found \"\$@\"; print -rl -- \$found >>$offers; builtin compadd \"\$@\"; }"
# What comes before the line editor has the terminal is edited by the terminal itself, which takes ^U for its own.
# The quotes keep the echo of a command from passing for what it prints.
zpty -w shell "zle-line-init() { print edi''ting }; zle -N zle-line-init"
while zpty -r shell output; do [[ $output == *editing* ]] && break; done
zpty -w -n shell "$2"$'\t\x15'"print do''ne"$'\n'
while zpty -r shell output; do [[ $output == *done* ]] && break; done
sort -u $offers | sed '/^$/d'
rm $offers
