# A part of the project has three folders: include/vlmtrain/<part>/ (public headers), src/<part>/ and tests/<part>/.
file(STRINGS ${CMAKE_SOURCE_DIR}/parts.txt VLMTRAIN_PARTS)
set(VLMTRAIN_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi)
# Warnings are errors with GCC only; clang, which builds the fuzz targets, has others.
if(NOT VLMTRAIN_FUZZ)
  list(APPEND VLMTRAIN_WARNINGS -Werror)
endif()

# With sanitizers, GCC 12 reports uninitialized values in LibTorch's headers and in <regex>.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize" AND NOT VLMTRAIN_FUZZ)
  list(APPEND VLMTRAIN_WARNINGS -Wno-maybe-uninitialized)
endif()

# Several files are compiled as one, because the headers take most of a file's compile time. Off for clangd (preset debug), which
# needs each file separately.
option(VLMTRAIN_TOGETHER "Compile several files of a part together" ON)
# Files in a batch, at most. Each doubling saves less; 32 files take up to 2.4 GB.
set(VLMTRAIN_BATCH_SIZE 32)
# GCC collects garbage only above a heap of 1 GiB, which takes 0.5 GB more and saves 8 to 15 % of the time of a batch.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND VLMTRAIN_TOGETHER)
  add_compile_options(--param=ggc-min-heapsize=1048576)
endif()
# LibTorch's headers take as long as all else of a batch, so the files that include them are in batches of their own.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/libtorch_sources.py ${CMAKE_SOURCE_DIR}
                OUTPUT_VARIABLE VLMTRAIN_LIBTORCH_SOURCES COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" VLMTRAIN_LIBTORCH_SOURCES "${VLMTRAIN_LIBTORCH_SOURCES}")

# vlmtrain_together(OUT TARGET FOLDER ALONE SOURCE…): sets OUT to the files that TARGET compiles instead of the sources: files
# that include several of them each, and the sources that match the regular expression ALONE (or ""). CMake's UNITY_BUILD writes
# absolute paths into its files, which prevents ccache hits in other clones. FOLDER is an include folder of the target.
function(vlmtrain_together out target folder alone)
  set(compiled)
  set(with_libtorch)
  set(without_libtorch)
  foreach(source IN LISTS ARGN)
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${source})
    if(NOT VLMTRAIN_TOGETHER OR (alone AND source MATCHES "${alone}"))
      list(APPEND compiled ${source})
    elseif(path IN_LIST VLMTRAIN_LIBTORCH_SOURCES)
      list(APPEND with_libtorch ${source})
    else()
      list(APPEND without_libtorch ${source})
    endif()
  endforeach()
  vlmtrain_write_batches(compiled ${target}_libtorch ${folder} ${with_libtorch})
  vlmtrain_write_batches(compiled ${target} ${folder} ${without_libtorch})
  set(${out} ${compiled} PARENT_SCOPE)
endfunction()

# vlmtrain_write_batches(LIST NAME FOLDER SOURCE…): writes NAME_0.cpp, …, which include as many sources each, and appends them to
# LIST.
function(vlmtrain_write_batches list name folder)
  list(LENGTH ARGN length)
  math(EXPR batches "(${length} + ${VLMTRAIN_BATCH_SIZE} - 1) / ${VLMTRAIN_BATCH_SIZE}")
  set(number 0)
  while(number LESS batches)
    math(EXPR begin "${length} * ${number} / ${batches}")
    math(EXPR size "${length} * (${number} + 1) / ${batches} - ${begin}")
    list(SUBLIST ARGN ${begin} ${size} batch)
    set(text)
    foreach(source IN LISTS batch)
      file(RELATIVE_PATH path ${folder} ${source})
      string(APPEND text "#include \"${path}\"\n")
    endforeach()
    set(file ${CMAKE_BINARY_DIR}/together/${name}_${number}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND ${list} ${file})
    math(EXPR number "${number} + 1")
  endwhile()
  # Batches of earlier builds, which scripts/lint.sh would check.
  while(EXISTS ${CMAKE_BINARY_DIR}/together/${name}_${number}.cpp)
    file(REMOVE ${CMAKE_BINARY_DIR}/together/${name}_${number}.cpp)
    math(EXPR number "${number} + 1")
  endwhile()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# A folder with rewritten sources of some parts, which contain all mutants (scripts/mutants).
set(VLMTRAIN_MUTANTS "" CACHE PATH "Mutated sources; empty: the project's own")
if(VLMTRAIN_MUTANTS)
  add_library(vlmtrain_mutant_chooser STATIC ${CMAKE_SOURCE_DIR}/scripts/mutants/chooser.cpp)
endif()

# vlmtrain_library(NAME ALONE SOURCE…): the static library vlmtrain_NAME of sources in src/. ALONE: a regular expression (or "")
# for files that are compiled separately.
function(vlmtrain_library name alone)
  set(sources)
  set(has_mutants OFF)
  foreach(source IN LISTS ARGN)
    string(REPLACE "${CMAKE_SOURCE_DIR}/src/" "${VLMTRAIN_MUTANTS}/src/" mutated ${source})
    if(VLMTRAIN_MUTANTS AND EXISTS ${mutated})
      set(source ${mutated})
      set(has_mutants ON)
    endif()
    list(APPEND sources ${source})
  endforeach()
  vlmtrain_together(compiled vlmtrain_${name} ${CMAKE_SOURCE_DIR}/src "${alone}" ${sources})
  add_library(vlmtrain_${name} STATIC ${compiled})
  target_include_directories(vlmtrain_${name} PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(vlmtrain_${name} PRIVATE ${VLMTRAIN_WARNINGS})
  if(has_mutants)
    target_compile_options(vlmtrain_${name} PRIVATE -w)
    target_link_libraries(vlmtrain_${name} PUBLIC vlmtrain_mutant_chooser)
  endif()
endfunction()

# vlmtrain_settings(LIBRARIES …): the static library vlmtrain_settings of src/<part>/settings/*.cpp: sources that need neither
# LibTorch nor other parts than base. LibTorch is not in its include path, and the front (cmake/Front.cmake) links all of it.
function(vlmtrain_settings)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*/settings/*.cpp)
  vlmtrain_library(settings "" ${sources})
  target_link_libraries(vlmtrain_settings PUBLIC vlmtrain_base ${ARGN})
endfunction()

# vlmtrain_part(NAME [LIBRARIES …] [PRIVATE_LIBRARIES …] [ALONE REGEX]): the static library vlmtrain_NAME of the part's sources,
# except those in settings/. It can include every part above it in parts.txt and none below (tests/include_order.py).
function(vlmtrain_part name)
  cmake_parse_arguments(PART "" "ALONE" "LIBRARIES;PRIVATE_LIBRARIES" ${ARGN})
  list(FIND VLMTRAIN_PARTS ${name} index)
  if(index EQUAL -1)
    message(FATAL_ERROR "part ${name} is not in parts.txt")
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  # Sources of other targets: programs, vlmtrain_settings, cmake/Kernels.cmake.
  list(FILTER sources EXCLUDE REGEX "/(main\\.cpp$|settings/|kernels/emulation/)")
  if(NOT sources)
    set(sources ${CMAKE_SOURCE_DIR}/cmake/empty.cpp)
  endif()
  vlmtrain_library(${name} "${PART_ALONE}" ${sources})
  target_link_libraries(vlmtrain_${name} PUBLIC ${PART_LIBRARIES} PRIVATE ${PART_PRIVATE_LIBRARIES})
  if(index EQUAL 1)
    target_link_libraries(vlmtrain_${name} PUBLIC vlmtrain_settings)
  elseif(index GREATER 1)
    math(EXPR above "${index} - 1")
    list(GET VLMTRAIN_PARTS ${above} part_above)
    target_link_libraries(vlmtrain_${name} PUBLIC vlmtrain_${part_above})
  endif()
endfunction()

# vlmtrain_executable(NAME SOURCE…): a program that uses every part.
function(vlmtrain_executable name)
  add_executable(${name} ${ARGN})
  target_compile_options(${name} PRIVATE ${VLMTRAIN_WARNINGS})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE vlmtrain_app)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  vlmtrain_for_older_hosts(${name})
endfunction()

# vlmtrain_test_program(PART): the program PART_tests of tests/PART/*_test.cpp, if any exist.
function(vlmtrain_test_program part)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${part}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  set(library ${part})
  if(NOT part IN_LIST VLMTRAIN_PARTS)
    set(library app)
  endif()
  vlmtrain_together(compiled ${part}_tests ${CMAKE_SOURCE_DIR}/tests "" ${sources})
  add_executable(${part}_tests ${compiled})
  # Only code of the parts is timed; -Og compiles test code in 20 to 25 % less time than -O1.
  target_compile_options(${part}_tests PRIVATE ${VLMTRAIN_WARNINGS} -Og)
  target_include_directories(${part}_tests PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${part}_tests PRIVATE VLMTRAIN_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                             VLMTRAIN_BINARY="$<TARGET_FILE:vlmtrain>")
  target_link_libraries(${part}_tests PRIVATE vlmtrain_${library} GTest::gtest GTest::gmock GTest::gtest_main)
  vlmtrain_for_older_hosts(${part}_tests)
endfunction()

# vlmtrain_test(PART LABEL… [PROCESSES N] [ONE_THREAD]): the program, and N ctest tests that each run every Nth of its tests. One
# ctest test per test would be slower, because loading LibTorch takes longer than most tests. Writes GoogleTest's reports to
# tests/reports. ONE_THREAD: LibTorch uses one thread, because operations on small tensors are slower with several.
function(vlmtrain_test part)
  cmake_parse_arguments(TEST "ONE_THREAD" "PROCESSES" "" ${ARGN})
  vlmtrain_test_program(${part})
  if(NOT TARGET ${part}_tests)
    return()
  endif()
  if(NOT TEST_PROCESSES)
    set(TEST_PROCESSES 1)
  endif()
  math(EXPR last "${TEST_PROCESSES} - 1")
  foreach(index RANGE ${last})
    set(name ${part})
    if(TEST_PROCESSES GREATER 1)
      math(EXPR number "${index} + 1")
      set(name ${part}.${number}_of_${TEST_PROCESSES})
    endif()
    add_test(NAME ${name} COMMAND ${part}_tests --gtest_brief=1
             --gtest_output=json:${CMAKE_CURRENT_BINARY_DIR}/reports/${name}.json)
    set_tests_properties(${name} PROPERTIES LABELS "${TEST_UNPARSED_ARGUMENTS}" TIMEOUT 1200
                         ENVIRONMENT "GTEST_TOTAL_SHARDS=${TEST_PROCESSES};GTEST_SHARD_INDEX=${index}")
    if(TEST_ONE_THREAD)
      set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT OMP_NUM_THREADS=1)
    endif()
  endforeach()
endfunction()
