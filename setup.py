"""The packages: all of the library, and the benchmarks. Everything else is in pyproject.toml."""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py


class BuildWithoutProofs(build_py):
    """Leaves out what needs `reference/`, which only a checkout has."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [
            entry for entry in found if package != "repkernels.bench" or not entry[1].startswith(("fit_", "prove_"))
        ]


setup(
    packages=[
        *find_packages(include=["repkernels", "repkernels.*"]),
        "repkernels.verify.golden",
        "repkernels.bench",
        "repkernels.bench.networks",
    ],
    cmdclass={"build_py": BuildWithoutProofs},
)
