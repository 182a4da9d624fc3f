#include "image/frame_times.h"

#include <algorithm>

namespace vlmtrain::image {

bool packets_are_frames(AVCodecID codec) {
  return codec != AV_CODEC_ID_VP8 && codec != AV_CODEC_ID_MPEG4;
}

std::vector<FrameTime> read_frame_times(VideoContainer& container) {
  if (!packets_are_frames(container.stream().codecpar->codec_id)) return {};
  std::vector<FrameTime> frames;
  while (const AVPacket* packet = container.next_packet()) {
    if ((packet->flags & AV_PKT_FLAG_DISCARD) != 0) continue;
    if (packet->pts == AV_NOPTS_VALUE) return {};
    frames.push_back({packet->pts, packet->dts, (packet->flags & AV_PKT_FLAG_KEY) != 0});
  }
  std::ranges::sort(frames, {}, &FrameTime::shown);
  if (std::ranges::adjacent_find(frames, {}, &FrameTime::shown) != frames.end()) return {};
  return frames;
}

}  // namespace vlmtrain::image
