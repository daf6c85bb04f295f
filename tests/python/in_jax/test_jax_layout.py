# tests/python/in_jax/test_jax_layout.py — python/core/jax/xla.h lies in memory as the headers of the installed jaxlib say
"""The structs of XLA's calls, member by member."""

import shutil
import subprocess
from pathlib import Path

import jax
import pytest
from conftest import ROOT

BUFFERS = {"count": "size", "types": "types"}
ATTRIBUTES = {**BUFFERS, "names": "names", "values": "attrs"}
# Ours: (theirs, {member: theirs}); all begin with the size and the extensions but for the first ones.
STRUCTS = {
    "Extension": ("XLA_FFI_Extension_Base", {"size": "struct_size", "type": "type", "next": "next"}),
    "Metadata": ("XLA_FFI_Metadata", {"size": "struct_size", "version": "api_version", "traits": "traits"}),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", {"base": "extension_base", "metadata": "metadata"}),
    "Bytes": ("XLA_FFI_ByteSpan", {"begin": "ptr", "size": "len"}),
    "Version": ("XLA_FFI_Api_Version", {"major": "major_version", "minor": "minor_version"}),
    "NewError": ("XLA_FFI_Error_Create_Args", {"message": "message", "code": "errc"}),
    "GetStream": ("XLA_FFI_Stream_Get_Args", {"context": "ctx", "stream": "stream"}),
    "GetDevice": ("XLA_FFI_DeviceOrdinal_Get_Args", {"context": "ctx", "device": "device_ordinal"}),
    "DestroyError": ("XLA_FFI_Error_Destroy_Args", {"error": "error"}),
    "Allocate": ("XLA_FFI_DeviceMemory_Allocate_Args", {"context": "ctx", "bytes": "size", "alignment": "alignment",
                                                        "data": "data"}),
    "Free": ("XLA_FFI_DeviceMemory_Free_Args", {"context": "ctx", "bytes": "size", "data": "data"}),
    "Api": ("XLA_FFI_Api", {"version": "api_version", "new_error": "XLA_FFI_Error_Create",
                            "destroy_error": "XLA_FFI_Error_Destroy", "get_stream": "XLA_FFI_Stream_Get",
                            "allocate": "XLA_FFI_DeviceMemory_Allocate", "free": "XLA_FFI_DeviceMemory_Free",
                            "get_device": "XLA_FFI_DeviceOrdinal_Get"}),
    "Buffer": ("XLA_FFI_Buffer", {"dtype": "dtype", "data": "data", "rank": "rank", "dims": "dims"}),
    "Buffers": ("XLA_FFI_Args", {**BUFFERS, "buffers": "args"}),
    "Attributes": ("XLA_FFI_Attrs", ATTRIBUTES),
    "Frame": ("XLA_FFI_CallFrame", {"api": "api", "context": "ctx", "stage": "stage", "arguments": "args",
                                    "results": "rets", "attributes": "attrs"}),
}
RENAMED = {"XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension"}  # by JAX 0.11
NUMBERS = {"xla::metadata": "XLA_FFI_Extension_Metadata", "xla::bytes": "XLA_FFI_AttrType_STRING",
           "xla::invalid_argument": "XLA_FFI_Error_Code_INVALID_ARGUMENT", "0": "XLA_FFI_API_MAJOR",
           "sizeof(xla::Buffers)": "sizeof(XLA_FFI_Rets)"}


def test_the_structs_lie_as_in_the_headers(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no compiler of C++")
    lines = ["#include <xla/ffi/api/c_api.h>", '#include "python/core/jax/xla.h"', "using namespace attune::python;"]
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text(encoding="utf-8")
    lines += [f"using {old} = {new};" for old, new in RENAMED.items() if new in header]
    for own, (name, members) in STRUCTS.items():
        begins = {} if "size" in members or "base" in members else {"size": "struct_size",
                                                                    "extensions": "extension_start"}
        for mine, other in {**begins, **members}.items():
            lines.append(f"static_assert(offsetof(xla::{own}, {mine}) == offsetof({name}, {other}));")
            lines.append(f"static_assert(sizeof(xla::{own}::{mine}) == sizeof({name}::{other}));")
    lines += [f"static_assert(static_cast<long>({ours}) == static_cast<long>({other}));"
              for ours, other in NUMBERS.items()]
    source = tmp_path / "layout.cpp"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    folders = [f"-I{jax.ffi.include_dir()}", f"-I{ROOT}"]
    done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", *folders, str(source)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
