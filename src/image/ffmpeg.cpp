#include "image/ffmpeg.h"

#include <array>
#include <cstdio>

namespace vlmtrain::image {
namespace {

thread_local std::string first_error;

void keep_first_error(void* /*object*/, int level, const char* format, va_list values) {
  if (level > AV_LOG_ERROR || !first_error.empty()) return;
  std::array<char, 256> line{};
  std::vsnprintf(line.data(), line.size(), format, values);
  first_error = line.data();
  first_error.erase(first_error.find_last_not_of(" \r\n") + 1);
}

}  // namespace

void begin_ffmpeg_messages() {
  [[maybe_unused]] static const bool set = (av_log_set_callback(keep_first_error), true);
  first_error.clear();
}

std::string ffmpeg_reason(int code) {
  if (!first_error.empty()) return first_error;
  std::array<char, AV_ERROR_MAX_STRING_SIZE> text{};
  av_strerror(code, text.data(), text.size());
  return text.data();
}

}  // namespace vlmtrain::image
