# libvlmtrain_parquet.so, next to the program: the plug-in that reads Parquet, with Arrow C++ from PyPI's pyarrow wheel, as
# scripts/setup.sh installs it. Without that folder the plug-in is not built, and reading Parquet fails with instructions.
file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/parquet.version VLMTRAIN_ARROW_VERSION LIMIT_COUNT 1)
set(VLMTRAIN_ARROW "" CACHE PATH "Folder that holds pyarrow/ (default: where scripts/setup.sh puts it)")
if(NOT VLMTRAIN_ARROW)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup.sh --print-arrow
                  OUTPUT_VARIABLE arrow_default OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(VLMTRAIN_ARROW ${arrow_default} CACHE PATH "" FORCE)
endif()

# The contract of the part is io/row_file.h: nothing links against it.
add_library(vlmtrain_parquet INTERFACE)
target_link_libraries(vlmtrain_parquet INTERFACE vlmtrain_io)

set(VLMTRAIN_HAS_PARQUET OFF)
file(GLOB arrow_libraries ${VLMTRAIN_ARROW}/pyarrow/libarrow.so.* ${VLMTRAIN_ARROW}/pyarrow/libparquet.so.*)
list(LENGTH arrow_libraries arrow_library_count)
if(VLMTRAIN_PORTABLE OR VLMTRAIN_FUZZ)
  message(STATUS "Parquet: no plug-in in this kind of build")
elseif(NOT arrow_library_count EQUAL 2)
  message(STATUS "Parquet: no plug-in, because pyarrow is not in ${VLMTRAIN_ARROW} (scripts/setup.sh downloads it)")
else()
  set(VLMTRAIN_HAS_PARQUET ON)
  # The wheel has other headers too; only Arrow's are visible.
  set(arrow_include ${CMAKE_BINARY_DIR}/arrow-include)
  file(MAKE_DIRECTORY ${arrow_include})
  foreach(folder arrow parquet)
    file(CREATE_LINK ${VLMTRAIN_ARROW}/pyarrow/include/${folder} ${arrow_include}/${folder} SYMBOLIC)
  endforeach()
  file(GLOB parquet_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/parquet/*.cpp)
  add_library(parquet_plugin SHARED ${parquet_sources})
  set_target_properties(parquet_plugin PROPERTIES OUTPUT_NAME vlmtrain_parquet LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                        CXX_VISIBILITY_PRESET hidden BUILD_RPATH ${VLMTRAIN_ARROW}/pyarrow)
  target_include_directories(parquet_plugin PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(parquet_plugin SYSTEM PRIVATE ${arrow_include})
  target_compile_options(parquet_plugin PRIVATE ${VLMTRAIN_WARNINGS})
  target_link_libraries(parquet_plugin PRIVATE nlohmann_json::nlohmann_json ${arrow_libraries})
endif()
