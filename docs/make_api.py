"""Writes docs/api.md from the signatures and docstrings of the public names, read as source.

python docs/make_api.py
"""

import ast
import inspect
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
HEAD = """# API reference

Written by `python docs/make_api.py` from the docstrings; change those, not this page. Names in
bold can be imported from `eve_acme` itself.
"""
PUBLIC = {
    "config": ["EVEConfig"],
    "core.networks": ["Network", "make_networks", "from_transformed", "from_functions"],
    "embedded.engine": ["Engine"],
    "types": ["Episode", "Transition"],
    "core.epistemic": ["make_epistemic", "Epistemic", "Values"],
    "saved": ["load", "save", "Agent"],
    "core.posterior": ["Posterior"],
    "core.acting": ["make_policy", "Policy"],
    "core.rounds": ["make_learner"],
    "core.update": ["Learner"],
    "environments.wrappers": ["with_discrete_actions", "OneHotAsIndex"],
    "environments.gyms": ["FromGym"],
    "errors": ["ConfigError", "InputError", "Diverged"],
    "agent.builder": ["EVEBuilder"],
    "agent.adapter": ["Acme040Builder"],
    "agent.layout": ["DistributedLayout"],
    "agent.run": ["AcmeEngine"],
}
"""Modules of the package, in the order of their use, and what of them is for users."""


def page() -> str:
    """The whole page."""
    package = ast.parse((ROOT / "eve_acme" / "__init__.py").read_text())
    exported = next(
        ast.literal_eval(node.value)
        for node in package.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    parts = [HEAD]
    for module, names in PUBLIC.items():
        tree = ast.parse((ROOT / "eve_acme" / f"{module.replace('.', '/')}.py").read_text())
        parts.append(f"## eve_acme.{module}\n\n{_first_paragraph(tree)}\n")
        found = {node.name: node for node in tree.body if hasattr(node, "name")}
        parts += [_entry(found[name], name in exported) for name in names]
    return "\n".join(parts)


def _entry(node: ast.AST, exported: bool) -> str:
    """A class with its methods and fields, or a function."""
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    name = f"**`{node.name}`**" if exported else f"`{node.name}`"
    text = f"### {name}\n\n"
    if isinstance(node, ast.FunctionDef):
        return text + f"{_code(node.name, node)}\n{_markdown(ast.get_docstring(node))}\n"
    text += f"{_markdown(ast.get_docstring(node))}\n"
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
    options = [child for child in node.body if isinstance(child, ast.AnnAssign)]
    for method in methods:
        if method.name == "__init__":
            text += f"\n{_code(node.name, method)}"
        elif not method.name.startswith("_"):
            text += f"\n{_code('.' + method.name, method)}{_first_paragraph(method)}\n"
    for field in options:
        if isinstance(field.value, ast.Call) and len(field.value.args) >= 2:  # A hyper-parameter.
            default, words = field.value.args[:2]
            text += f"\n- `{field.target.id} = {ast.unparse(default)}`: {ast.literal_eval(words)}"
    return text.rstrip("\n") + "\n"


def _code(name: str, function: ast.FunctionDef) -> str:
    """A signature as a block of code; a property without brackets."""
    if any(ast.unparse(decorator) == "property" for decorator in function.decorator_list):
        line = f"{name} -> {ast.unparse(function.returns)}" if function.returns else name
    else:
        returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
        arguments = re.sub(r"^self(, )?", "", ast.unparse(function.args))
        line = f"{name}({arguments}){'' if function.name == '__init__' else returns}"
    return f"```python\n{line}\n```\n"


def _first_paragraph(node: ast.AST) -> str:
    return _markdown((ast.get_docstring(node) or "").split("\n\n")[0])


def _markdown(docstring: str | None) -> str:
    """Paragraphs as they are; the entries below `Args:` and the like as a list."""
    lines = []
    for line in inspect.cleandoc(docstring or "").splitlines():
        entry = re.match(r"^  (\w+): (.*)", line)
        if re.match(r"^(Args|Attributes|Returns|Raises):$", line):
            lines += [line, ""]
        elif entry:
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        else:
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
