#pragma once

#include <cstdint>
#include <vector>

#include "image/video_container.h"

namespace vlmtrain::image {

/// A frame as its packet tells it, times in the stream's time base.
struct FrameTime {
  int64_t presentation_time;
  int64_t decoding_time;  ///< AV_NOPTS_VALUE: not told
  bool is_key;
};

/// Whether each packet of the codec is one frame that is shown. VP8 has packets of frames for reference only; MPEG-4
/// part 2 has packets that say that nothing changed.
bool packets_are_frames(AVCodecID codec);

/// The frames by the time at which they are shown, from the packets that follow in `container`. Empty where packets do
/// not tell the frames: without times, with two of the same time, or in MPEG-4 part 2. A data error where they are
/// more than kMaxVideoFrames.
std::vector<FrameTime> read_frame_times(VideoContainer& container);

}  // namespace vlmtrain::image
