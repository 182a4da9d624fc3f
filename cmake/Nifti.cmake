# Nifti::nifti2, the NIfTI reference library's headers and arithmetic of affines. Debian has no pkg-config file of it, and its CMake
# package names its own zlib. Linked statically everywhere: a hundred kilobytes, and hosts without Debian's packages run it.
find_path(VLMTRAIN_NIFTI_INCLUDE nifti2_io.h PATH_SUFFIXES nifti REQUIRED)
find_library(VLMTRAIN_NIFTI_ARCHIVE libnifti2.a REQUIRED)
find_library(VLMTRAIN_ZNZ_ARCHIVE libznz.a REQUIRED)
# Archives that CMake knows to need each other, so that zlib's, where that is one too, is named behind them.
add_library(Nifti::znz STATIC IMPORTED)
set_target_properties(Nifti::znz PROPERTIES IMPORTED_LOCATION ${VLMTRAIN_ZNZ_ARCHIVE} INTERFACE_LINK_LIBRARIES PkgConfig::ZLIB)
add_library(Nifti::nifti2 STATIC IMPORTED)
set_target_properties(Nifti::nifti2 PROPERTIES
  IMPORTED_LOCATION ${VLMTRAIN_NIFTI_ARCHIVE}
  INTERFACE_INCLUDE_DIRECTORIES ${VLMTRAIN_NIFTI_INCLUDE}
  INTERFACE_LINK_LIBRARIES "Nifti::znz;m")
