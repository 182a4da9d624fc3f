#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "image/ffmpeg.h"

namespace vlmtrain::image {

/// Lets FFmpeg read a file that lies in memory. It must outlive the format context that reads it.
class MemoryInput {
 public:
  explicit MemoryInput(std::shared_ptr<const std::string> bytes);
  MemoryInput(const MemoryInput&) = delete;
  MemoryInput& operator=(const MemoryInput&) = delete;

  AVIOContext* context() { return context_.get(); }

 private:
  static int read(void* opaque, uint8_t* out, int max_bytes);
  static int64_t seek(void* opaque, int64_t offset, int whence);

  struct ContextDeleter {
    void operator()(AVIOContext* context) const;
  };

  std::shared_ptr<const std::string> bytes_;
  int64_t position_ = 0;
  std::unique_ptr<AVIOContext, ContextDeleter> context_;
};

}  // namespace vlmtrain::image
