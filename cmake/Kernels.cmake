# libvlmtrain_kernels.so, next to the program: the custom CUDA kernels in src/kernels/cuda, compiled by nvcc of PyPI's wheels
# (scripts/setup.sh). It links only the CUDA runtime of LibTorch's wheels, and the program does not link it. Without nvcc
# it is not built, and ATen's kernels are used.
file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/nvcc.version VLMTRAIN_NVCC_VERSION LIMIT_COUNT 1)
set(VLMTRAIN_NVCC "" CACHE PATH "Folder that holds nvidia/cu13/bin/nvcc (default: where scripts/setup.sh puts it)")
if(NOT VLMTRAIN_NVCC)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup.sh --print-nvcc
                  OUTPUT_VARIABLE nvcc_default OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(VLMTRAIN_NVCC ${nvcc_default} CACHE PATH "" FORCE)
endif()
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cu)
file(GLOB kernel_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.h)
set(kernel_interface ${CMAKE_SOURCE_DIR}/include/vlmtrain/kernels/table.h ${CMAKE_SOURCE_DIR}/include/vlmtrain/kernels/launchers.h)
list(APPEND kernel_headers ${kernel_interface})

# The version of the interface, which the program compares with the library's: a hash of the headers, so that a library is
# never used with other arguments than those it was built for.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kernel_interface})
set(interface_text)
foreach(header IN LISTS kernel_interface)
  file(READ ${header} text)
  string(APPEND interface_text "${text}")
endforeach()
string(SHA256 interface_hash "${interface_text}")
string(SUBSTRING ${interface_hash} 0 7 interface_hash)
set(kernels_version VLMTRAIN_KERNELS_VERSION=0x${interface_hash})

# The same sources compiled for the CPU, to test their results.
file(GLOB emulation_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/emulation/*.cpp)
add_library(emulated_kernels SHARED EXCLUDE_FROM_ALL ${kernel_sources} ${emulation_sources})
set_source_files_properties(${kernel_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++;-O1")
set_target_properties(emulated_kernels PROPERTIES OUTPUT_NAME vlmtrain_kernels_emulated
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} CXX_VISIBILITY_PRESET hidden)
target_compile_definitions(emulated_kernels PRIVATE VLMTRAIN_EMULATED ${kernels_version})
target_include_directories(emulated_kernels PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_include_directories(emulated_kernels SYSTEM PRIVATE ${vgpu_cuda_include})
target_link_options(emulated_kernels PRIVATE LINKER:-z,defs)

set(VLMTRAIN_HAS_KERNELS OFF)
set(nvcc ${VLMTRAIN_NVCC}/nvidia/cu13/bin/nvcc)
if(VLMTRAIN_FUZZ)
  return()
endif()
if(NOT EXISTS ${nvcc})
  message(STATUS "vlmtrain is built without custom kernels: no nvcc in ${VLMTRAIN_NVCC} (scripts/setup.sh downloads it)")
  return()
endif()
set(VLMTRAIN_HAS_KERNELS ON)

# Machine code for the architectures of LibTorch's wheels, and PTX, which drivers compile for architectures in between and
# newer ones.
set(kernel_architectures 75 80 86 89 90 100 120)
set(kernel_code)
foreach(architecture IN LISTS kernel_architectures)
  list(APPEND kernel_code -gencode arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(APPEND kernel_code -gencode arch=compute_100,code=compute_100)
set(kernel_objects)
foreach(source IN LISTS kernel_sources)
  cmake_path(GET source STEM name)
  set(object ${CMAKE_BINARY_DIR}/kernels/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${nvcc} -std=c++20 -O3 -D${kernels_version} ${kernel_code} -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler
            -fPIC,-fvisibility=hidden,-Wall,-Werror --Werror all-warnings -I${CMAKE_SOURCE_DIR}/include
            -I${CMAKE_SOURCE_DIR}/src -c ${source} -o ${object}
    DEPENDS ${source} ${kernel_headers} COMMENT "Compiling kernels/cuda/${name}.cu" VERBATIM)
  list(APPEND kernel_objects ${object})
endforeach()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/kernels)
add_library(kernels_plugin SHARED ${kernel_objects})
set_target_properties(kernels_plugin PROPERTIES OUTPUT_NAME vlmtrain_kernels LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                      LINKER_LANGUAGE CXX)
target_link_directories(kernels_plugin PRIVATE ${vgpu_cuda_lib})
target_link_libraries(kernels_plugin PRIVATE -l:libcudart.so.13)
# A launcher that the table declares and no file implements is an error.
target_link_options(kernels_plugin PRIVATE LINKER:-z,defs)
vlmtrain_for_older_hosts(kernels_plugin)
