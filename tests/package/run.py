# tests/package/run.py — build and run the consumer project, by find_package on an installed copy or add_subdirectory
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from turn import in_turn  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["find_package", "add_subdirectory"])
for name in ["cmake", "source", "build", "compiler", "launcher", "engine", "shared", "cc", "licensed", "python"]:
    parser.add_argument(f"--{name}", default="")
parser.add_argument("--turns", type=int, default=1, help="in how many of them one run does it")
parser.add_argument("--compile-only", action="store_true", help="the consumer's own file, and nothing of attune")
args = parser.parse_args()
if not in_turn(0, args.turns):
    print("[skip] it is in another turn")
    raise SystemExit


def do(*command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    prefix, out = Path(folder) / "prefix", Path(folder) / "out"
    settings = ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DCMAKE_C_COMPILER={args.cc or 'cc'}", f"-DCMAKE_CXX_COMPILER={args.compiler}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={args.launcher}"]
    if args.way == "find_package":
        do(args.cmake, "--install", args.build, "--prefix", prefix)
        do(sys.executable, Path(__file__).with_name("licences.py"), args.build, prefix, args.licensed)
        internal = [p for p in (prefix / "include").rglob("*") if p.is_file() and p.parent.name != "attune"]
        if internal:
            raise SystemExit(f"installed beside include/attune: {internal}")
        for config in prefix.rglob("*.cmake"):
            text = config.read_text(encoding="utf-8")
            if "find_dependency" in text or args.source in text or args.build in text:
                raise SystemExit(f"{config.name} asks for a dependency, or names a folder of the build:\n{text}")
        settings += [f"-DCMAKE_PREFIX_PATH={prefix}"]
    else:
        # Compiled anew, so as fast as can be: in batches, and not optimised.
        settings += [f"-DATTUNE_SOURCE={args.source}", f"-DATTUNE_CPU={args.engine}", "-DATTUNE_UNITY=ON",
                     "-DATTUNE_WERROR=ON", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0"]
    do(args.cmake, "-G", "Ninja", "-S", Path(__file__).parent / "consumer", "-B", out, *settings)
    if args.compile_only:
        # By its command alone: as a target it would wait for libraries.
        commands = json.loads((out / "compile_commands.json").read_text(encoding="utf-8"))
        [own] = [one["command"] for one in commands if one["file"].endswith("/consumer/main.cpp")]
        do("sh", "-c", f"cd {out} && {own}")
        raise SystemExit
    do(args.cmake, "--build", out)
    if args.way == "find_package" and args.shared == "ON":
        if do(out / "consumer_c") != "ok\n":
            raise SystemExit("the consumer in C found no attune")
        if shutil.which("pkg-config"):
            where = next(prefix.rglob("attune.pc")).parent
            told = subprocess.run(["pkg-config", "--cflags", "--libs", "attune"], check=True, text=True,
                                  capture_output=True, env={**os.environ, "PKG_CONFIG_PATH": str(where)}).stdout.split()
            do(args.cc, "-std=c99", Path(__file__).parent / "consumer" / "main.c", "-o", out / "by_pkg_config", *told,
               f"-Wl,-rpath,{where.parent}")
            if do(out / "by_pkg_config") != "ok\n":
                raise SystemExit("the consumer in C found no attune by pkg-config")
    if args.way == "find_package":
        for page in "man/man1/attune.1", "bash-completion/completions/attune", "zsh/site-functions/_attune":
            if "completion" not in (prefix / "share" / page).read_text(encoding="utf-8"):
                raise SystemExit(f"share/{page} does not name every verb")
        # The example that is a project, as it was installed: it finds attune, and nothing else.
        [example] = prefix.rglob("examples/runtime/CMakeLists.txt")
        do(args.cmake, "-G", "Ninja", "-S", example.parent, "-B", out / "decoder", f"-DCMAKE_PREFIX_PATH={prefix}",
           f"-DCMAKE_CXX_COMPILER={args.compiler}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={args.launcher}")
        do(args.cmake, "--build", out / "decoder")
        if args.engine == "ON":
            tokens = Path(__file__).parents[1] / "examples" / "runtime.py"
            said = do(args.python or sys.executable, tokens, out / "decoder" / "decoder")
            if not said.startswith(("ok\n", "[skip]")):
                raise SystemExit(f"the decoder over the installed attune: {said}")
        if args.engine == "ON" and do(out / "consumer_bundle") != "ok\n":
            raise SystemExit("the program with its kernels in it does not find them")
    said = do(out / "consumer")
    if said != ("ok\n" if args.engine == "ON" else "no-engine\n"):
        raise SystemExit(f"the consumer said: {said}")
