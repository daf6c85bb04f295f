# tools/dev/site.sh — ./dev site and playground: the pages, and the playground's core as WebAssembly

# Without what they recommend, which is all of LLVM once more. Ubuntu's chromium is a snap, and is not installed.
browser_packages=(emscripten)
[[ ! -e /etc/debian_version ]] || grep -q '^ID=ubuntu' /etc/os-release || browser_packages+=(chromium)

# The playground's core as WebAssembly, in build/wasm/attune.js. Debian's emscripten needs modules of Debian's node, which
# another node does not find by itself.
wasm() {
  say "building the playground, some two minutes"
  export NODE_PATH=${NODE_PATH:-/usr/share/nodejs}
  logged build/wasm.log emcmake cmake -G Ninja -S playground/wasm -B build/wasm -DCMAKE_BUILD_TYPE=Release
  cmake --build build/wasm --parallel "$jobs"
  touch build/wasm/attune.js  # tests compare its time with that of sources, some of which it does not need
}

site() {
  local engine=()
  set_up "${build_packages[@]}" python3
  # shellcheck disable=SC2310  # one command
  if has_apt; then apt_install emscripten; fi
  build release attune_cli
  if [[ -n $(command -v emcc) ]]; then
    wasm
    engine=(--engine build/wasm/attune.js)
  else
    echo "[skip] there is no emscripten: the site comes without the playground"
  fi
  say "writing the site"
  python3 tools/site/site.py --attune build/release/tools/attune "${engine[@]}"
}

site_test() {
  # shellcheck disable=SC2310  # one command
  if has_apt; then apt_install "${browser_packages[@]}"; fi
  site
  say "testing the site"
  python3 tests/playground/browser.py build/site build/release/tools/attune build/site-test "$@"
}

serve() {
  local port=8000
  [[ ${1:-} != --port ]] || port=$2
  site
  [[ -e build/site/playground.html ]] || { echo "attune: there is no playground without emscripten" >&2; return 1; }
  say "http://127.0.0.1:$port/playground.html"
  python3 -m http.server --bind 127.0.0.1 --directory build/site "$port"
}
