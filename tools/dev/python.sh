# tools/dev/python.sh — ./dev python, torch, hf, jax, flex and wheel: environments with the package

# told COMMAND...: runs pip. The log keeps all of its output; the terminal shows one line for each step.
told() {
  attempt stepwise "$@"
  ((status == 0)) || tail -n 40 build/python.log
  return "$status"
}
stepwise() { "$@" -v 2>&1 | tee build/python.log | sed -u -n 's/^ *\(\[[0-9]*\/[0-9]*\]\)/\1/p'; }

# The package as it is in the sources: editing a .py needs no new install.
editable() {
  set_up "${build_packages[@]}"
  set_up_python build/venv
  say "building the package, editable: the library takes some four minutes of one core, once"
  told build/venv/bin/pip install --no-build-isolation --no-deps --editable .
}

python_package() {
  local start=$SECONDS
  editable
  say "installed in build/venv in $((SECONDS - start)) s: build/venv/bin/python -c 'import attune'"
  say "testing, some minutes more"
  build/venv/bin/python -m pytest -q tests/python "$@"
}

# with_packages PACKAGE...: build/venv with the package, editable, and these packages of PyPI.
with_packages() {
  editable
  build/venv/bin/python -c "import $(IFS=, && echo "$*")" 2>/dev/null && return
  say "installing $*"
  build/venv/bin/pip install --quiet "$@"
}

# inside "PACKAGE..." ARGUMENT...: pytest with these arguments where these packages are installed as well. The tests in
# tests/python/in_* run in ./dev test too, wherever their library is installed; it is installed here alone.
inside() {
  local packages
  read -ra packages <<<"$1"
  shift
  with_packages "${packages[@]}"
  say "testing"
  build/venv/bin/python -m pytest -q -rs "$@"
}

torch_tests() {
  [[ -f ${1:-} ]] || { echo "[skip] ./dev flex FILE: there is no file ${1:-}; it comes with torch's sources alone" && return; }
  with_packages torch expecttest
  say "testing"
  build/venv/bin/python tests/python/in_torch/flex_file.py "$@"
}

# The largest wheel, in bytes.
most_wheel=25000000

wheel() {
  local python=build/venv/bin/python fresh=build/wheel-venv file exported
  local make=(build/venv/bin/pip wheel --no-build-isolation --no-deps --wheel-dir build/wheels)
  set_up "${build_packages[@]}"
  set_up_python build/venv
  say "building the wheel: the library takes some four minutes of one core, once"
  rm -rf build/wheels "$fresh"
  told "${make[@]}" .
  "$python" -m venv --system-site-packages "$fresh"
  "$fresh/bin/python" -c 'import numpy' 2>/dev/null || "$fresh/bin/pip" install --quiet numpy
  "$fresh/bin/pip" install --quiet --no-deps build/wheels/*.whl
  say "compiling the usual kernels into it, some minutes"
  attempt "$fresh/bin/python" -m attune.usual build/usual.attune
  case $status in
    0)
      told "${make[@]}" --config-settings=cmake.define.ATTUNE_PYTHON_BUNDLE="$PWD/build/usual.attune" .
      "$fresh/bin/pip" install --quiet --force-reinstall --no-deps build/wheels/*.whl
      ;;
    77) echo "[skip] no compiler for GPUs here: the wheel has no kernels in it" ;;
    *) return "$status" ;;
  esac
  say "checking it"
  file=$(echo build/wheels/*.whl)
  exported=$(nm -D --defined-only "$fresh"/lib/python*/site-packages/attune/libattune.so.0)
  exported=$(awk '$3 !~ /^attune_/ && $3 != "ATTUNE_0" {print $3}' <<<"$exported")
  [[ -z $exported ]] || { echo "attune: libattune.so exports $exported" >&2 && return 1; }
  (($(stat -c %s "$file") <= most_wheel)) || { echo "attune: $file has more than $most_wheel bytes" >&2 && return 1; }
  (
    cd /
    "$OLDPWD/$fresh/bin/python" -m doctest "$OLDPWD/tests/python/smoke.txt"
  )
  "$fresh/bin/python" -m attune.bench
  ls -l "$file"
}
