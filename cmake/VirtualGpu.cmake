# The virtual GPU (docs/explanation/virtual-gpu.md): stub libraries in <build>/vgpu that replace the CUDA libraries under LibTorch. They
# use no part of vlmtrain but the GPU table, and nothing links them: a process loads them with LD_PRELOAD.
#
# They find each other by DT_RPATH, which LD_LIBRARY_PATH does not override, because a driver's libcuda.so.1 may be in a
# library path. The GPU itself is in a library whose name no driver uses.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(VLMTRAIN_VGPU_FOLDER ${CMAKE_BINARY_DIR}/vgpu)
set(vgpu_cuda_include ${VLMTRAIN_LIBTORCH}/nvidia/cu13/include)
set(vgpu_cuda_lib ${VLMTRAIN_LIBTORCH}/nvidia/cu13/lib)

# The public interface of the part (vlmtrain/vgpu/interface.h).
add_library(vlmtrain_vgpu INTERFACE)
target_link_libraries(vlmtrain_vgpu INTERFACE vlmtrain_memory)

set(vgpu_link_options -Wl,--disable-new-dtags -Wl,-z,nodelete)

file(GLOB vgpu_core_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/vgpu/core/*.cpp)
vlmtrain_together(vgpu_core_compiled vgpu_core ${CMAKE_SOURCE_DIR}/src "" ${vgpu_core_sources})
add_library(vgpu_core SHARED ${vgpu_core_compiled} ${CMAKE_SOURCE_DIR}/src/memory/gpu_table.cpp)
set(vgpu_core_map ${CMAKE_SOURCE_DIR}/cmake/virtual_gpu_core.map)
set_target_properties(vgpu_core PROPERTIES OUTPUT_NAME vlmtrain_vgpu LIBRARY_OUTPUT_DIRECTORY ${VLMTRAIN_VGPU_FOLDER}
                      LINK_DEPENDS ${vgpu_core_map})
target_include_directories(vgpu_core PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_include_directories(vgpu_core SYSTEM PRIVATE ${CMAKE_SOURCE_DIR}/src/vgpu/cuda_headers ${vgpu_cuda_include})
target_compile_options(vgpu_core PRIVATE ${VLMTRAIN_WARNINGS})
target_link_options(vgpu_core PRIVATE -Wl,--version-script=${vgpu_core_map} ${vgpu_link_options})
target_link_libraries(vgpu_core PRIVATE ${CMAKE_DL_LIBS})
vlmtrain_for_older_hosts(vgpu_core)

# vlmtrain_stub_library(NAME SOVERSION N FOLDERS … STUBS …): lib<NAME>.so.<N> from the sources in src/vgpu/<FOLDERS>, and
# generated stubs for all other functions of the real library. STUBS are arguments of virtual_gpu_stubs.py.
function(vlmtrain_stub_library name)
  cmake_parse_arguments(ARG "" "SOVERSION" "FOLDERS;STUBS;LIBRARIES" ${ARGN})
  set(sources)
  foreach(folder IN LISTS ARG_FOLDERS)
    file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/vgpu/${folder}/*.cpp)
    list(APPEND sources ${files})
  endforeach()
  set(stubs ${CMAKE_BINARY_DIR}/generated/vgpu_${name}_stubs.cpp)
  set(map ${CMAKE_BINARY_DIR}/generated/vgpu_${name}.map)
  add_custom_command(OUTPUT ${stubs} ${map}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/virtual_gpu_stubs.py --stubs ${stubs} --map ${map} ${ARG_STUBS}
    DEPENDS ${CMAKE_SOURCE_DIR}/cmake/virtual_gpu_stubs.py VERBATIM)
  vlmtrain_together(compiled vgpu_${name} ${CMAKE_SOURCE_DIR}/src "" ${sources})
  add_library(vgpu_${name} SHARED ${compiled} ${stubs} ${map})
  set_target_properties(vgpu_${name} PROPERTIES OUTPUT_NAME ${name} SOVERSION ${ARG_SOVERSION}
                        LIBRARY_OUTPUT_DIRECTORY ${VLMTRAIN_VGPU_FOLDER} BUILD_RPATH_USE_ORIGIN ON)
  target_include_directories(vgpu_${name} PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(vgpu_${name} SYSTEM PRIVATE ${CMAKE_SOURCE_DIR}/src/vgpu/cuda_headers ${vgpu_cuda_include})
  target_compile_options(vgpu_${name} PRIVATE ${VLMTRAIN_WARNINGS})
  target_link_libraries(vgpu_${name} PRIVATE vgpu_core ${ARG_LIBRARIES})
  target_link_options(vgpu_${name} PRIVATE -Wl,--version-script=${map} ${vgpu_link_options})
  set_target_properties(vgpu_${name} PROPERTIES LINK_DEPENDS ${map})
  vlmtrain_for_older_hosts(vgpu_${name})
endfunction()

# The statuses are CUDA_ERROR_NOT_SUPPORTED, cudaErrorNotSupported, CUBLAS_STATUS_NOT_SUPPORTED and NVML_ERROR_NOT_SUPPORTED.
vlmtrain_stub_library(cuda SOVERSION 1 FOLDERS driver
  STUBS --header ${vgpu_cuda_include}/cuda.h --status 801)
vlmtrain_stub_library(cudart SOVERSION 13 FOLDERS runtime
  STUBS --library ${vgpu_cuda_lib}/libcudart.so.13 --version-node libcudart.so.13 --status 801
        --export vlmtrain_vgpu_interface
  LIBRARIES vgpu_cuda ${CMAKE_DL_LIBS})
vlmtrain_stub_library(cublas SOVERSION 13 FOLDERS cublas
  STUBS --library ${vgpu_cuda_lib}/libcublas.so.13 --version-node libcublas.so.13 --status 15)
vlmtrain_stub_library(cublasLt SOVERSION 13 FOLDERS cublaslt
  STUBS --library ${vgpu_cuda_lib}/libcublasLt.so.13 --version-node libcublasLt.so.13 --status 15)
# No wheel ships NVML's header; the names are those that LibTorch looks up.
vlmtrain_stub_library(nvidia-ml SOVERSION 1 FOLDERS nvml
  STUBS --names nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetGpuFabricInfoV
                nvmlInit_v2 nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetComputeRunningProcesses
                nvmlSystemGetCudaDriverVersion_v2
        --status 3)

# All stub libraries, for programs that start processes on the virtual GPU.
add_custom_target(vgpu)
add_dependencies(vgpu vgpu_core vgpu_cuda vgpu_cudart vgpu_cublas vgpu_cublasLt vgpu_nvidia-ml)

# The value of LD_PRELOAD for a process on the virtual GPU.
set(vgpu_stub_libraries libcuda.so.1 libcudart.so.13 libcublasLt.so.13 libcublas.so.13 libnvidia-ml.so.1)
list(TRANSFORM vgpu_stub_libraries PREPEND ${VLMTRAIN_VGPU_FOLDER}/)
list(JOIN vgpu_stub_libraries ":" VLMTRAIN_VGPU_PRELOAD)

# vlmtrain_virtual_gpu_test(FOLDER GPU …): the tests in tests/FOLDER, which ctest runs once on each GPU.
function(vlmtrain_virtual_gpu_test folder)
  vlmtrain_test_program(${folder})
  add_dependencies(${folder}_tests vgpu)
  foreach(gpu IN LISTS ARGN)
    add_test(NAME ${folder}.${gpu} COMMAND ${folder}_tests)
    set_tests_properties(${folder}.${gpu} PROPERTIES LABELS virtual-gpu TIMEOUT 600
                         ENVIRONMENT "LD_PRELOAD=${VLMTRAIN_VGPU_PRELOAD};VLMTRAIN_VGPU_NAME=${gpu}")
  endforeach()
endfunction()
