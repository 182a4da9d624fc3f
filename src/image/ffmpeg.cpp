#include "image/ffmpeg.h"

#include <array>
#include <cstdio>

namespace vlmtrain::image {
namespace {

thread_local std::string first_error;

void store_first_error(void* /*object*/, int level, const char* format, va_list arguments) {
  if (level > AV_LOG_ERROR || !first_error.empty()) return;
  std::array<char, 256> line{};
  std::vsnprintf(line.data(), line.size(), format, arguments);
  first_error = line.data();
  first_error.erase(first_error.find_last_not_of(" \r\n") + 1);
}

}  // namespace

void capture_ffmpeg_messages() {
  [[maybe_unused]] static const bool is_set = (av_log_set_callback(store_first_error), true);
  first_error.clear();
}

std::string get_ffmpeg_error(int code) {
  if (!first_error.empty()) return first_error;
  std::array<char, AV_ERROR_MAX_STRING_SIZE> message{};
  av_strerror(code, message.data(), message.size());
  return message.data();
}

}  // namespace vlmtrain::image
