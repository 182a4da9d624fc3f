#include "image/video/ffmpeg.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace vlmtrain::image {

namespace {

/// The first error message of this thread since capture_ffmpeg_messages().
thread_local std::string first_error;

/// FFmpeg's log callback. FFmpeg's later messages usually follow from the first one.
void store_first_error(void* /*object*/, int level, const char* format, va_list arguments) {
  if (level > AV_LOG_ERROR || !first_error.empty()) return;
  std::array<char, 256> message{};
  std::vsnprintf(message.data(), message.size(), format, arguments);
  first_error = message.data();
  first_error.erase(first_error.find_last_not_of(" \r\n") + 1);
}

constexpr int kFileBufferBytes = 1 << 15;  // the size of FFmpeg's own file buffers

}  // namespace

void capture_ffmpeg_messages() {
  [[maybe_unused]] static const bool is_set = (av_log_set_callback(store_first_error), true);
  first_error.clear();
}

std::string get_ffmpeg_error_message(int code) {
  if (!first_error.empty()) return first_error;
  std::array<char, AV_ERROR_MAX_STRING_SIZE> message{};
  av_strerror(code, message.data(), message.size());
  return message.data();
}

MemoryInput::MemoryInput(std::shared_ptr<const std::string> bytes) : bytes_(std::move(bytes)) {
  auto* const buffer = static_cast<unsigned char*>(av_malloc(kFileBufferBytes));
  if (buffer == nullptr) throw std::bad_alloc();
  avio_context_.reset(
      avio_alloc_context(buffer, kFileBufferBytes, /*write_flag=*/0, this, read, /*write_packet=*/nullptr, seek));
  if (avio_context_ != nullptr) return;
  av_free(buffer);
  throw std::bad_alloc();
}

void MemoryInput::AvioContextDeleter::operator()(AVIOContext* avio_context) const {
  av_freep(&avio_context->buffer);  // FFmpeg may have replaced the buffer
  avio_context_free(&avio_context);
}

int MemoryInput::read(void* opaque, uint8_t* out, int max_bytes) {
  auto& input = *static_cast<MemoryInput*>(opaque);
  const int64_t count = std::min<int64_t>(max_bytes, std::ssize(*input.bytes_) - input.position_);
  if (count <= 0) return AVERROR_EOF;
  std::memcpy(out, input.bytes_->data() + input.position_, static_cast<size_t>(count));
  input.position_ += count;
  return static_cast<int>(count);
}

int64_t MemoryInput::seek(void* opaque, int64_t offset, int whence) {
  auto& input = *static_cast<MemoryInput*>(opaque);
  const int64_t size = std::ssize(*input.bytes_);
  int64_t origin = 0;
  switch (whence & ~AVSEEK_FORCE) {
    case AVSEEK_SIZE:
      return size;
    case SEEK_SET:
      break;
    case SEEK_CUR:
      origin = input.position_;
      break;
    case SEEK_END:
      origin = size;
      break;
    default:
      return AVERROR(EINVAL);
  }
  if (offset < -origin || offset > size - origin) return AVERROR(EINVAL);
  return input.position_ = origin + offset;
}

}  // namespace vlmtrain::image
