# LibTorch::cpu: LibTorch from PyPI's torch wheel, as scripts/setup.sh installs it.
#
# find_package(Torch) of a CUDA wheel demands the CUDA toolkit; this target does not. The binary links only the CPU
# libraries: libtorch_cuda.so is next to them and is loaded at run time if a run uses a CUDA device
# (memory/device.h), so that one binary serves both and a run on the CPU does not load it.
file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/libtorch.version VLMTRAIN_LIBTORCH_VERSION LIMIT_COUNT 1)
set(VLMTRAIN_LIBTORCH "" CACHE PATH "Folder that holds torch/ and nvidia/ (default: where scripts/setup.sh puts it)")
if(NOT VLMTRAIN_LIBTORCH)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup.sh --print-libtorch
                  OUTPUT_VARIABLE libtorch_default OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(VLMTRAIN_LIBTORCH ${libtorch_default} CACHE PATH "" FORCE)
endif()

set(libtorch_root ${VLMTRAIN_LIBTORCH}/torch)
if(NOT EXISTS ${libtorch_root}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "${VLMTRAIN_LIBTORCH}: has no LibTorch; run scripts/setup.sh")
endif()
file(READ ${libtorch_root}/version.py libtorch_version_py)
if(NOT libtorch_version_py MATCHES "__version__ = '${VLMTRAIN_LIBTORCH_VERSION}[+']")
  message(FATAL_ERROR "${libtorch_root}: is not LibTorch ${VLMTRAIN_LIBTORCH_VERSION}; remove it and run scripts/setup.sh")
endif()

# The wheel also has headers of other libraries, such as fmt, that would hide Debian's; only LibTorch's own are visible.
set(libtorch_include ${CMAKE_BINARY_DIR}/libtorch-include)
file(MAKE_DIRECTORY ${libtorch_include})
foreach(folder ATen c10 caffe2 torch)
  file(CREATE_LINK ${libtorch_root}/include/${folder} ${libtorch_include}/${folder} SYMBOLIC)
endforeach()

add_library(LibTorch::cpu INTERFACE IMPORTED)
target_include_directories(LibTorch::cpu SYSTEM INTERFACE ${libtorch_include}
                           ${libtorch_root}/include/torch/csrc/api/include)
target_link_directories(LibTorch::cpu INTERFACE ${libtorch_root}/lib)
# libtorch_cpu.so needs libcudart and libcupti, which its own RPATH finds at run time.
if(NOT VLMTRAIN_PORTABLE)
  target_link_options(LibTorch::cpu INTERFACE -Wl,-rpath,${libtorch_root}/lib)
endif()
target_link_options(LibTorch::cpu INTERFACE -Wl,--disable-new-dtags
                    -Wl,--allow-shlib-undefined)
target_link_libraries(LibTorch::cpu INTERFACE -Wl,--no-as-needed torch_cpu c10 -Wl,--as-needed)
