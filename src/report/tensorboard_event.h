#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "vlmtrain/image/size.h"

namespace vlmtrain::report {

// The records of an event file. Messages are protocol buffers, of TensorFlow's event.proto, summary.proto and
// tensor.proto (tensorboard/compat/proto); a record is framed as record_writer.h of TensorFlow says.

/// The first event of each file.
std::string make_version_event(double time);
/// TensorBoard forgets what it has of `step` and those behind it (SessionLog.START).
std::string make_session_start_event(double time, int64_t step);
std::string make_scalars_event(double time, int64_t step, const std::map<std::string, double>& values_by_tag);
std::string make_text_event(double time, int64_t step, std::string_view tag, std::string_view markdown);
std::string make_image_event(double time, int64_t step, std::string_view tag, std::string_view bytes,
                             image::ImageSize size);

/// Length, its CRC, the event, its CRC.
std::string frame_record(std::string_view event);

}  // namespace vlmtrain::report
