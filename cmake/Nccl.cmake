# libvlmtrain_nccl.so, next to the program: the plug-in with c10d's process group over the NCCL of LibTorch's wheels, for
# collectives between GPUs. The program links neither it nor LibTorch's CUDA library.
add_library(vlmtrain_nccl INTERFACE)
target_link_libraries(vlmtrain_nccl INTERFACE vlmtrain_distributed)

if(VLMTRAIN_FUZZ)
  return()
endif()
file(GLOB nccl_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/nccl/*.cpp)
add_library(nccl_plugin SHARED ${nccl_sources})
set_target_properties(nccl_plugin PROPERTIES OUTPUT_NAME vlmtrain_nccl LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                      CXX_VISIBILITY_PRESET hidden)
target_include_directories(nccl_plugin PRIVATE ${CMAKE_SOURCE_DIR}/include)
target_include_directories(nccl_plugin SYSTEM PRIVATE ${CMAKE_SOURCE_DIR}/src/vgpu/cuda_headers ${vgpu_cuda_include}
                           ${VLMTRAIN_LIBTORCH}/nvidia/nccl/include)
target_compile_options(nccl_plugin PRIVATE ${VLMTRAIN_WARNINGS})
target_link_libraries(nccl_plugin PRIVATE LibTorch::cpu -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed)
vlmtrain_for_older_hosts(nccl_plugin)
