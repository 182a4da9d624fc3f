# Nifti::nifti2, the NIfTI reference library's headers and affine arithmetic. Debian has no pkg-config file for it, and its CMake
# package refers to its own zlib. Always linked statically: it has a hundred kilobytes, and other hosts lack Debian's packages.
find_path(VLMTRAIN_NIFTI_INCLUDE nifti2_io.h PATH_SUFFIXES nifti REQUIRED)
find_library(VLMTRAIN_NIFTI_ARCHIVE libnifti2.a REQUIRED)
find_library(VLMTRAIN_ZNZ_ARCHIVE libznz.a REQUIRED)
# CMake knows the archives' dependencies, so a static zlib follows them on the command line.
add_library(Nifti::znz STATIC IMPORTED)
set_target_properties(Nifti::znz PROPERTIES IMPORTED_LOCATION ${VLMTRAIN_ZNZ_ARCHIVE} INTERFACE_LINK_LIBRARIES PkgConfig::ZLIB)
add_library(Nifti::nifti2 STATIC IMPORTED)
set_target_properties(Nifti::nifti2 PROPERTIES
  IMPORTED_LOCATION ${VLMTRAIN_NIFTI_ARCHIVE}
  INTERFACE_INCLUDE_DIRECTORIES ${VLMTRAIN_NIFTI_INCLUDE}
  INTERFACE_LINK_LIBRARIES "Nifti::znz;m")
