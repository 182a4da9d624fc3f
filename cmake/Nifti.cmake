# Nifti::nifti2, the NIfTI reference library's headers and arithmetic of affines. Debian has no pkg-config file of it, and its CMake
# package names its own zlib. Linked statically everywhere: a hundred kilobytes, and hosts without Debian's packages run it.
find_path(VLMTRAIN_NIFTI_INCLUDE nifti2_io.h PATH_SUFFIXES nifti REQUIRED)
find_library(VLMTRAIN_NIFTI_ARCHIVE libnifti2.a REQUIRED)
find_library(VLMTRAIN_ZNZ_ARCHIVE libznz.a REQUIRED)
add_library(Nifti::nifti2 INTERFACE IMPORTED)
set_target_properties(Nifti::nifti2 PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES ${VLMTRAIN_NIFTI_INCLUDE}
  INTERFACE_LINK_LIBRARIES "${VLMTRAIN_NIFTI_ARCHIVE};${VLMTRAIN_ZNZ_ARCHIVE};PkgConfig::ZLIB;m")
