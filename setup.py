"""How pip builds mshnet: everything is read from settings.ini."""

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
EXTRAS = ("notebook", "export", "video", "flir", "browser", "dev")

parser = ConfigParser()
parser.read(HERE / "settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]
readme = HERE / "README.md"

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    author=cfg["author"],
    license=cfg["license"],
    license_files=["LICENSE"],
    url=cfg["git_url"],
    keywords=cfg["keywords"].split(),
    packages=find_packages(include=[cfg["lib_name"], f"{cfg['lib_name']}.*"]),
    package_data={cfg["lib_name"]: ["py.typed", "pretrained*", "lists/*.txt", "examples/*"]},
    python_requires=f">={cfg['min_python']}",
    install_requires=cfg["requirements"].split(),
    extras_require={name: cfg[f"{name}_requirements"].split() for name in EXTRAS},
    entry_points={
        "console_scripts": cfg["console_scripts"].split(),
        "nbdev": [f"{cfg['lib_name']}={cfg['lib_name']}._modidx:d"],
    },
    zip_safe=False,
)
