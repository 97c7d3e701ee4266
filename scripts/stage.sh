# stage WORDS LOG COMMAND...: runs a command as one line of output, "== WORDS ... 12 s". What it prints is appended to LOG; on a terminal
# the line shows the log's last line while it runs. If the command fails, the end of the log follows and the status is the command's.
# Sourced by the scripts that set up and build.
stage() {
  local words=$1 log=$2 start=$SECONDS status=0 last columns
  shift 2
  mkdir -p "$(dirname "$log")"
  printf '\n== %s\n' "$words" >> "$log"
  if [[ ! -t 1 ]]; then printf '== %s' "$words"; fi
  ( set -e; "$@" ) >> "$log" 2>&1 < /dev/null &
  local job=$!
  if [[ -t 1 ]]; then
    columns=$(tput cols 2> /dev/null || echo 80)
    while kill -0 "$job" 2> /dev/null; do
      last=$(tail -c 400 "$log" | tr '\r' '\n' | tail -n 1 | tr -dc '[:print:]')
      printf '\r\033[K%s' "$(printf '== %s, %d s  %s' "$words" $((SECONDS - start)) "$last" | cut -c "1-$((columns - 1))")"
      sleep 0.5
    done
    printf '\r\033[K== %s' "$words"
  fi
  wait "$job" || status=$?
  if [[ $status -ne 0 ]]; then
    printf ': FAILED after %d s; the end of %s:\n' $((SECONDS - start)) "$log"
    tail -n 40 "$log"
    return "$status"
  fi
  printf ', %d s\n' $((SECONDS - start))
}
