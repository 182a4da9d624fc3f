# Programs that measure (docs/benchmarks), which are not part of the default build:
#   cmake --build --preset release --target benchmarks     (or one by its name)
# CI builds them, so that they compile with the rest.

# Uses only the part io.
add_executable(stream_data EXCLUDE_FROM_ALL bench/stream_data.cpp)
target_compile_options(stream_data PRIVATE ${VLMTRAIN_WARNINGS})
target_link_libraries(stream_data PRIVATE vlmtrain_io)
# Uses only the part image.
add_executable(read_volumes EXCLUDE_FROM_ALL bench/read_volumes.cpp)
target_compile_options(read_volumes PRIVATE ${VLMTRAIN_WARNINGS})
target_link_libraries(read_volumes PRIVATE vlmtrain_image)
foreach(program delta_net_cost kernel_speed load_checkpoint load_samples plan_honesty plan_least render_template tokenize_records)
  vlmtrain_executable(${program} bench/${program}.cpp)
  set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
  list(APPEND benchmarks ${program})
endforeach()
foreach(program plan_honesty plan_least)
  add_dependencies(${program} vgpu)
endforeach()

# For Python (bench/peer_step.py): the recorder of a plan's costs, without the other parts, which are not built as shared libraries.
add_library(step_cost MODULE EXCLUDE_FROM_ALL bench/step_cost.cpp src/planner/dry_run/cost_recorder.cpp src/memory/allocation_trace.cpp
            src/memory/gpu_table.cpp)
set_target_properties(step_cost PROPERTIES OUTPUT_NAME vlmtrain_step_cost LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_include_directories(step_cost PRIVATE include src)
target_compile_options(step_cost PRIVATE ${VLMTRAIN_WARNINGS})
target_link_libraries(step_cost PRIVATE ${vlmtrain_log} nlohmann_json::nlohmann_json LibTorch::cpu ${CMAKE_DL_LIBS})

# Loaded into any CUDA process; uses CUPTI of LibTorch's wheel (bench/kernel_times.py).
add_library(kernel_times MODULE EXCLUDE_FROM_ALL bench/kernel_times.cpp)
set_target_properties(kernel_times PROPERTIES OUTPUT_NAME vlmtrain_kernel_times LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                      CXX_VISIBILITY_PRESET hidden)
target_compile_options(kernel_times PRIVATE ${VLMTRAIN_WARNINGS})
target_include_directories(kernel_times SYSTEM PRIVATE ${vgpu_cuda_include})
target_link_directories(kernel_times PRIVATE ${vgpu_cuda_lib})
target_link_libraries(kernel_times PRIVATE -l:libcupti.so.13)

add_custom_target(benchmarks)
add_dependencies(benchmarks ${benchmarks} stream_data read_volumes step_cost kernel_times)
