#pragma once

#include "image/video_container.h"

namespace vlmtrain::image {

/// The frames of a container's video, in the order in which they are shown. Errors are data_errors.
class VideoDecoder {
 public:
  explicit VideoDecoder(VideoContainer& container);

  /// The next frame, nullptr after the last one. It is valid until the next call.
  const AVFrame* next();
  /// Forgets all packets, for the container to go elsewhere.
  void flush() { avcodec_flush_buffers(context_.get()); }
  /// Takes `packet` as the next one.
  void send_packet(const AVPacket* packet);

 private:
  VideoContainer& container_;
  CodecContextPtr context_;
  FramePtr frame_;
  int64_t decoded_pixels_ = 0;
};

}  // namespace vlmtrain::image
