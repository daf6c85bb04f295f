# tools/dev/setup.sh — installs what a build, the tests and Python need; builds a preset

say() { printf '\n== %s\n' "$*"; }

# attempt COMMAND...: sets `status` to COMMAND's exit status. In an `if`, or next to && and ||, bash would go on after a
# failed step of a function: there `set -e` holds for nothing that the function calls.
status=0
attempt() {
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  set -e
}

# logged FILE COMMAND...: what COMMAND prints goes to FILE, and is shown if it fails.
logged() {
  local log=$1
  shift
  attempt "$@" >"$log" 2>&1
  ((status == 0)) || cat "$log"
  return "$status"
}

# The packages that a build of the library and the command line needs, and those that the tests need as well.
build_packages=(g++ cmake ninja-build ccache lld libfmt-dev libxxhash-dev libcli11-dev nlohmann-json3-dev
                libedit-dev llvm-19-dev libzstd-dev zlib1g-dev)
test_packages=("${build_packages[@]}" catch2 clang clang-format-14 python3 shellcheck)
# What the Python package needs; the rest comes from PyPI into build/venv.
python_packages=(python3-dev python3-venv python3-numpy python3-pytest)

has_apt() { [[ -n $(command -v apt-get) && -n $(command -v dpkg-query) ]]; }

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

apt_install() {
  local missing=() package as_root=()
  for package in "$@"; do
    # shellcheck disable=SC2310  # one command
    is_installed "$package" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || as_root=(sudo)
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  local quiet=(-qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
  say "installing ${missing[*]}"
  # If one of the machine's package sources does not answer, that need not matter: the install below decides.
  "${as_root[@]}" apt-get update "${quiet[@]}" || echo "apt-get update had trouble; trying to install all the same"
  "${as_root[@]}" apt-get install -y --no-install-recommends "${quiet[@]}" "${missing[@]}" >/dev/null
}

# set_up PACKAGE...: installs the packages, or ends with a sentence that names what is missing.
set_up() {
  # shellcheck disable=SC2310  # one command
  if has_apt; then
    apt_install "$@"
    return
  fi
  local missing=() program
  for program in g++ cmake ninja python3; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  if ((${#missing[@]})); then
    echo "attune: no apt here, and missing: ${missing[*]}" >&2
    echo "install them, and the development files of what Debian calls: $*" >&2
    exit 1
  fi
}

# The sanitizers and libFuzzer are a separate package, named after clang's major version.
set_up_sanitizers() {
  # shellcheck disable=SC2310  # one command
  has_apt || return 0
  apt_install "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"
}

# Options for every configure.
configure=()

# set_up_python FOLDER: a Python environment with what the package and its tests need. Without a network, what Debian has
# must do, and tests of Python are skipped by name where that is not enough.
set_up_python() {
  local folder=$1
  # shellcheck disable=SC2310  # one command
  if has_apt; then apt_install "${python_packages[@]}"; fi
  [[ -x $folder/bin/python ]] || python3 -m venv --system-site-packages "$folder" || return 0
  if ! "$folder/bin/python" -c 'import nanobind, scikit_build_core, numpy, pytest, ml_dtypes, tqdm' 2>/dev/null; then
    say "installing nanobind and scikit-build-core"
    "$folder/bin/pip" install --quiet nanobind scikit-build-core numpy pytest ml_dtypes tqdm ||
      echo "PyPI does not answer: the Python package is left out where nanobind is missing"
  fi
  configure+=("-DPython_EXECUTABLE=$PWD/$folder/bin/python")
}

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  say "building $preset"
  logged "build/$preset.log" cmake --preset "$preset" "${configure[@]}"
  sed -n '/-- attune /,/-- Configuring done/{s/^-- //;/Configuring done/!p}' "build/$preset.log"
  cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"}
}
