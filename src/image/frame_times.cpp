#include "image/frame_times.h"

#include <algorithm>

#include "image/frame_source.h"

namespace vlmtrain::image {

namespace {

/// VP8 has packets of frames for reference only; the fifth bit of a packet tells (RFC 6386, 9.1).
bool is_shown(const AVPacket& packet, AVCodecID codec) {
  constexpr uint8_t kShowFrameBit = 0x10;
  return codec != AV_CODEC_ID_VP8 || (packet.data[0] & kShowFrameBit) != 0;
}

}  // namespace

bool packets_are_frames(AVCodecID codec) {
  return codec != AV_CODEC_ID_VP8 && codec != AV_CODEC_ID_MPEG4;
}

std::vector<FrameTime> read_frame_times(VideoContainer& container) {
  const AVCodecID codec = container.stream().codecpar->codec_id;
  if (!packets_are_frames(codec) && codec != AV_CODEC_ID_VP8) return {};
  std::vector<FrameTime> frames;
  while (const AVPacket* packet = container.next_packet()) {
    if ((packet->flags & AV_PKT_FLAG_DISCARD) != 0 || !is_shown(*packet, codec)) continue;
    if (packet->pts == AV_NOPTS_VALUE) return {};
    frames.push_back({packet->pts, packet->dts, (packet->flags & AV_PKT_FLAG_KEY) != 0});
    check_frame_count(std::ssize(frames), container.name());
  }
  std::ranges::sort(frames, {}, &FrameTime::presentation_time);
  if (std::ranges::adjacent_find(frames, {}, &FrameTime::presentation_time) != frames.end()) return {};
  return frames;
}

}  // namespace vlmtrain::image
