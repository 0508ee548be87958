# Installation and the package configuration that find_package(tutti) reads.
