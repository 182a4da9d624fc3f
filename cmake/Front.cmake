# vlmtrain: the program that users call, linked without LibTorch, which takes longer to load than help takes to print. It prints
# help and usage errors itself and starts vlmtrain-core, next to it, for everything else (src/app/settings/front.cpp).
#
# It links the libraries vlmtrain_settings and vlmtrain_base, neither of which has LibTorch. A source in them that needs LibTorch or
# another part does not compile, or leaves undefined symbols here.
add_executable(vlmtrain src/app/front/main.cpp src/app/process/terminate_handler.cpp)
target_compile_options(vlmtrain PRIVATE ${VLMTRAIN_WARNINGS})
target_include_directories(vlmtrain PRIVATE src)
target_link_libraries(vlmtrain PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,vlmtrain_settings>)
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
