# libvlmtrain_curl.so, next to the program: the plug-in that downloads from the Hugging Face Hub, with libcurl and OpenSSL. It is
# loaded at the first download, so programs that need none start without both libraries.
# The contract of the part is hub/http.h: nothing links against it.
add_library(vlmtrain_curl INTERFACE)
target_link_libraries(vlmtrain_curl INTERFACE vlmtrain_hub)

if(VLMTRAIN_FUZZ)
  return()
endif()
file(GLOB curl_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/curl/*.cpp)
add_library(curl_plugin SHARED ${curl_sources})
set_target_properties(curl_plugin PROPERTIES OUTPUT_NAME vlmtrain_curl LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                      CXX_VISIBILITY_PRESET hidden)
target_include_directories(curl_plugin PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_compile_options(curl_plugin PRIVATE ${VLMTRAIN_WARNINGS})
target_link_libraries(curl_plugin PRIVATE PkgConfig::CURL PkgConfig::CRYPTO)
if(VLMTRAIN_PORTABLE)
  # The functions of the archives are not visible to the program, which may load another OpenSSL.
  target_link_options(curl_plugin PRIVATE LINKER:--exclude-libs,ALL)
endif()
vlmtrain_for_older_hosts(curl_plugin)
