# tools/dev/package.sh — ./dev package: the release as .tar.xz and .deb, and both tried

# pack FOLDER: compresses what CPack hardly did, both at once, a core each. The window is one in which the program's LLVM
# and the library's meet: CPack's has 8 MB. CPack also counts a library for each of its links where it says how much a
# Debian package takes.
pack() {
  local archive deb tree size waited=()
  for archive in "$1"/*.tar.gz; do
    (gzip -dc "$archive" | xz --lzma2=preset=6,dict=64MiB >"${archive%.gz}.xz") &
    waited+=($!)
  done
  for deb in "$1"/*.deb; do
    [[ -e $deb ]] || continue
    tree=build/unpacked  # below build/: what a failed part leaves goes at the next one's start
    rm -rf "$tree"
    dpkg-deb --raw-extract "$deb" "$tree"
    size=$(du -sk --apparent-size --exclude=DEBIAN "$tree" | cut -f1)
    sed -i "s/^Installed-Size:.*/Installed-Size: $size/" "$tree/DEBIAN/control"
    dpkg-deb --root-owner-group -Zxz -z9 --build "$tree" "$deb" >/dev/null
    rm -rf "$tree"
  done
  wait "${waited[@]}"
  rm "$1"/*.tar.gz
}

# What was packed is tried too: its command line must run, and a C program must link its library.
try_package() {
  local at=$PWD/build/tried root
  rm -rf "$at" && mkdir -p "$at"
  tar -xJf build/packages/*.tar.xz -C "$at"
  root=$(echo "$at"/*)
  "$root/bin/attune" verify 'kv <= q' --calls 2 --target cpu
  cc -std=c99 tests/package/consumer/main.c -o "$at/in_c" -I "$root/include" -L "$root/lib" -lattune \
    "-Wl,-rpath,$root/lib"
  [[ $("$at/in_c") == ok ]]
  if [[ -n $(command -v dpkg-deb) ]]; then
    dpkg-deb -x build/packages/*.deb "$at/deb"
    "$at/deb/usr/bin/attune" --version
  fi
  rm -rf "$at"
}

package() {
  local kinds=TGZ
  release
  say "packing, some two minutes"
  [[ -z $(command -v dpkg-deb) ]] || kinds="TGZ;DEB"
  rm -rf build/packages
  logged build/cpack.log cpack --config build/release/CPackConfig.cmake -G "$kinds" -B build/packages
  rm -rf build/packages/_CPack_Packages
  pack build/packages
  say "trying it"
  try_package
  (cd build/packages && ls -l -- *)
}
