# tools/dev/test.sh — ./dev test: builds and tests two presets; with --all runs the other commands too; counts what passed

# Time limit in minutes for the tests of one preset. They have taken 42 minutes on a slow machine; a whole CI run takes
# 29 minutes on a faster one.
test_minutes=90
passed=0
failed=0
summary=()

# part NAME COMMAND...: one part of the tests, which passes or fails as a whole.
part() {
  local name=$1 start=$SECONDS
  shift
  attempt "$@"
  if ((status == 0)); then
    passed=$((passed + 1))
    summary+=("$name: passed, $((SECONDS - start)) s")
  else
    failed=$((failed + 1))
    summary+=("$name: FAILED with exit status $status, $((SECONDS - start)) s")
  fi
}

# failures_of LOG: the tests that failed or timed out in a log of ctest, each with the last 25 lines of its output. The
# summary repeats them, because only the end of a long log may be shown.
failures_of() {
  awk 'function end(first) {
         if (title == "") return
         print title
         for (first = count > 25 ? count - 24 : 1; first <= count; ++first) print "    " lines[first]
         title = "" }
       /^ *([0-9]+\/[0-9]+)? *Test +#[0-9]+:/ || /^ *Start +[0-9]+:/ || /^[0-9]+% tests passed/ { end() }
       /^ *([0-9]+\/[0-9]+)? *Test +#[0-9]+:.*\*\*\*/ && !/\*\*\*Skipped/ {
         title = $0; sub(/^.*Test +#/, "  #", title); count = 0; next }
       title != "" && NF { lines[++count] = $0 }
       END { end() }' "$1"
}

# check PRESET: build and test one preset; its counts join passed and failed. A build that breaks is one failure.
check() {
  local preset=$1 log="build/$1.ctest.log" start=$SECONDS built here_failed=0 here_all=0 failures stopped=""
  attempt build "$preset"
  if ((status != 0)); then
    failed=$((failed + 1))
    summary+=("$preset: does not build, $((SECONDS - start)) s")
    return 0
  fi
  built=$((SECONDS - start))
  say "testing $preset"
  # Each test has its own limit, in the preset, and runs again when it hits that; the summary says so. This limit over
  # all tests catches hangs that no other limit ends.
  # One test more than there are processors: some wait for what they started.
  timeout --kill-after=30 "$((test_minutes * 60))" ctest --preset "$preset" --parallel "$((jobs + 1))" \
    --repeat after-timeout:2 2>&1 | tee "$log" || true
  failures=$(failures_of "$log")
  if [[ $(grep -E '^[0-9]+% tests passed' "$log") =~ ([0-9]+)\ tests\ failed\ out\ of\ ([0-9]+) ]]; then
    here_failed=${BASH_REMATCH[1]}
    here_all=${BASH_REMATCH[2]}
  else
    # ctest was stopped: count the tests that finished, and the stop itself as one failure.
    local finished
    finished=$(grep -cE '^ *[0-9]+/[0-9]+ +Test +#' "$log" || true)
    here_failed=$(($(grep -cE '^  #' <<<"$failures" || true) + 1)) here_all=$((finished + 1))
    stopped="  stopped after $finished tests; the last to start: $(grep -E '^ +Start +[0-9]+:' "$log" | tail -n "$((jobs + 1))" |
             sed -E 's/^ +Start +[0-9]+: //' | paste -sd ';')"
  fi
  local skipped late
  skipped=$(grep -c '\*\*\*Skipped' "$log" || true)
  late=$(grep -c '\*\*\*Timeout' "$log" || true)
  ((late == 0)) || summary+=("$preset: $late times a test was not done in time; see $log")
  passed=$((passed + here_all - here_failed - skipped))
  failed=$((failed + here_failed))
  summary+=("$preset: $((here_all - here_failed - skipped)) passed, $here_failed failed, $skipped skipped;" \
            "  built in $built s, tested in $((SECONDS - start - built)) s")
  [[ -z $stopped ]] || summary+=("$stopped")
  ((here_failed == 0)) || summary+=("$failures")
}

# ./dev playground as a reader types it, until it has answered; another port, as tests share a machine.
playground_answers() {
  local port=8${RANDOM: -3} server tried
  ./dev playground --port "$port" &
  server=$!
  for ((tried = 0; tried < 1800; ++tried)); do
    sleep 1
    if python3 tools/dev/answers.py "http://127.0.0.1:$port/playground.html" 'attune'; then
      kill "$server"
      return 0
    fi
    [[ -d /proc/$server ]] || break
  done
  attempt wait "$server"
  echo "attune: ./dev playground did not answer" >&2
  return $((status == 0 ? 1 : status))
}

# What pages tell a reader to run, in the form in which they type it.
read_commands() {
  part "./dev site --test" ./dev site --test
  part "./dev demo" ./dev demo
  part "./dev build" ./dev build
  part "./dev playground" playground_answers
  part "./dev package" ./dev package
  part "./dev python" ./dev python
  part "./dev torch" ./dev torch
  part "./dev wheel" ./dev wheel
}

# The turn of this run: tests of many similar cases take a share of them, which the commit chooses (tests/turn.h).
turn_of_commit() {
  local commit
  commit=$(git rev-parse --short=8 HEAD 2>/dev/null) || commit=0
  echo "$((16#${commit:-0}))"
}

test_all() {
  local start=$SECONDS
  case ${1:-} in
    "") : "${ATTUNE_TURN:=$(turn_of_commit)}" ;;
    --all) ATTUNE_TURN=all ;;
    *) echo "attune: ./dev test has no option \`$1\`; ./dev help" >&2 && return 2 ;;
  esac
  export ATTUNE_TURN
  set_up "${test_packages[@]}" "${browser_packages[@]}"
  set_up_sanitizers
  # Not build/venv: its editable package would be found before the one that is built here.
  set_up_python build/test-venv
  summary+=("set-up: $((SECONDS - start)) s")
  # What the tests of dev ask about.
  if [[ -n $(command -v emcc) ]]; then part "the playground's WebAssembly" wasm; fi
  check dev
  check ci
  [[ ${1:-} != --all ]] || read_commands
  say "summary"
  summary+=("turn: ATTUNE_TURN=$ATTUNE_TURN repeats it")
  printf '%s\n' "${summary[@]}" "all: $((SECONDS - start)) s" ""
  echo "$passed passed, $failed failed"
  ((failed == 0))
}
