# vlmtrain: the program that users call, linked without LibTorch, which takes longer to load than help takes to print. It prints
# help and usage errors itself and starts vlmtrain-core, next to it, for everything else (src/app/front/front.cpp).
#
# It links only the parts' archives, not their dependencies. The linker takes only the needed files of each, which the parts
# compile ALONE. A file that needs LibTorch causes undefined symbols here: move the needed functions to a file without it.
# Unused code of LibTorch's headers is discarded.
add_executable(vlmtrain src/app/front/main.cpp src/app/process/terminate_handler.cpp)
target_compile_options(vlmtrain PRIVATE ${VLMTRAIN_WARNINGS})
target_include_directories(vlmtrain PRIVATE include src)
target_link_options(vlmtrain PRIVATE -Wl,--gc-sections)
set(front_archives)
foreach(part app train evaluation planner distributed engine models data nn memory image io base)
  list(APPEND front_archives $<TARGET_FILE:vlmtrain_${part}>)
  add_dependencies(vlmtrain vlmtrain_${part})
endforeach()
target_link_libraries(vlmtrain PRIVATE ${front_archives} ${vlmtrain_yaml} ${vlmtrain_log} Threads::Threads
                      ${CMAKE_DL_LIBS})
if(VLMTRAIN_MUTANTS)
  target_link_libraries(vlmtrain PRIVATE vlmtrain_mutant_chooser)
endif()
set_target_properties(vlmtrain PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
vlmtrain_for_older_hosts(vlmtrain)
if(VLMTRAIN_PORTABLE)
  # Shared libstdc++ has std::filesystem only from GCC 9 on. vlmtrain-core finds it in LibTorch; here it is linked statically.
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.a OUTPUT_VARIABLE archive
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(filesystem ${CMAKE_BINARY_DIR}/filesystem)
  file(MAKE_DIRECTORY ${filesystem})
  execute_process(COMMAND ${CMAKE_AR} x ${archive} fs_dir.o fs_ops.o fs_path.o WORKING_DIRECTORY ${filesystem}
                  COMMAND_ERROR_IS_FATAL ANY)
  target_link_libraries(vlmtrain PRIVATE ${filesystem}/fs_dir.o ${filesystem}/fs_ops.o ${filesystem}/fs_path.o)
endif()
add_dependencies(vlmtrain vlmtrain_core)
