# tools/checks/pyapi.py — docs/python-api.md has what the Python package exports, from its sources; --write writes it
import ast
import inspect
import re
import sys

from tree import ROOT, read, verdict

PAGE = "docs/python-api.md"
MODULES = ["attune", "attune.mods", "attune.torch", "attune.jax", "attune.jax.maxtext", "attune.hf", "attune.diffusers"]
BEGIN = """# The Python API

This page is for reference: every public name of the Python package, from its docstrings. [Python](python.md),
[PyTorch](torch.md) and [JAX](jax.md) explain how to use them. `./dev map` writes this page; a test compares it.
"""


def file_of(root, module):
    path = "python/" + module.replace(".", "/")
    return f"{path}/__init__.py" if (root / f"{path}/__init__.py").exists() else f"{path}.py"


class Module:
    """A source file: its docstring, what it exports, and what its names are."""

    def __init__(self, root, name):
        self.root, self.name = root, name
        self.tree = ast.parse(read(root, file_of(root, name)))
        self.doc = ast.get_docstring(self.tree) or ""
        self.made, self.imported, self.all = {}, {}, None
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.made.setdefault(node.name, node)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attune"):
                self.imported.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                self.all = ast.literal_eval(node.value)

    def names(self):
        return self.all if self.all is not None else [n for n in self.made if not n.startswith("_")]

    def found(self, name):
        """(module, definition) of a name, wherever it is defined; None if it is no function or class of the package."""
        if name in self.made:
            return self, self.made[name]
        if name not in self.imported:
            return None
        module, real = self.imported[name]
        if (self.root / file_of(self.root, f"{module}.{real}")).exists():
            return None  # a module
        return Module(self.root, module).found(real) if (self.root / file_of(self.root, module)).exists() else None


def text_of(doc):
    """A docstring as Markdown: its examples are code."""
    out = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        out.append(f"```python\n{block}\n```" if block.startswith(">>>") else re.sub(r"\n\s*", " ", block))
    return "\n\n".join(out)


def signature(node, name, method=False):
    arguments = node.args
    if method and arguments.args:
        arguments.args = arguments.args[1:]
    for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if one:
            one.annotation = None
    return f"{name}({ast.unparse(arguments)})"


def is_method(node):
    return isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__call__")


def methods(module, node, seen):
    """Public methods with a docstring, inherited ones too."""
    out = []
    for one in node.body:
        if is_method(one) and one.name not in seen and ast.get_docstring(one):
            seen.add(one.name)
            kind = {ast.unparse(d) for d in one.decorator_list}
            own = "property" in kind or any(d.endswith(".setter") for d in kind)
            name = node.name if one.name == "__call__" else f".{one.name}"
            call = name if own else signature(one, name, "staticmethod" not in kind)
            out.append((f"`{call}`", ast.get_docstring(one)))
    for base in node.bases:
        found = module.found(ast.unparse(base).split("[")[0])
        if found:
            out += methods(*found, seen)
    return out


def entry(module, name):
    found = module.found(name)
    if found is None:
        return f"### `{name}`\n\nA module: below.\n" if f"{module.name}.{name}" in MODULES else None
    where, node = found
    doc = text_of(ast.get_docstring(node) or "")
    if isinstance(node, ast.FunctionDef):
        return f"### `{name}`\n\n```text\n{signature(node, f'{module.name}.{name}')}\n```\n\n{doc}\n"
    init = next((m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)
    call = f"```text\n{signature(init, f'{module.name}.{name}', True)}\n```\n\n" if init else ""
    out = f"### `{name}`\n\n{call}{doc}\n"
    for call, said in methods(where, node, {"__init__"}):
        out += f"\n**{call}** — {text_of(said)}\n"
    return out


def page(root):
    out = BEGIN
    for name in MODULES:
        if not (root / file_of(root, name)).exists():
            continue
        module = Module(root, name)
        out += f"\n## `{name}`\n\n{text_of(module.doc)}\n"
        for one in module.names():
            text = entry(module, one)
            out += f"\n{text}" if text else ""
    return re.sub(r"[ \t]+$", "", out, flags=re.M)


def complaints(root):
    shown = read(root, PAGE) if (root / PAGE).exists() else ""
    return [] if shown == page(root) else [f"{PAGE}: is not what the package exports; run ./dev map"]


if "--write" in sys.argv:
    (ROOT / PAGE).write_text(page(ROOT), encoding="utf-8")
else:
    package = {"python/attune/__init__.py": '"""It computes."""\nfrom attune._a import f\n__all__ = ["f"]\n',
               "python/attune/_a.py": 'def f(x: int) -> int:\n    """Twice x.\n\n    >>> f(1)\n    2\n    """\n'}
    right = (BEGIN + "\n## `attune`\n\nIt computes.\n\n### `f`\n\n```text\nattune.f(x)\n```\n\nTwice x.\n\n"
             "```python\n>>> f(1)\n2\n```\n")
    verdict(complaints, wrong={"docs/python-api.md: is not": {**package, PAGE: right.replace("Twice", "Half")}},
            right={**package, PAGE: right})
