#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "vlmtrain/image/size.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/report/prediction.h"

namespace vlmtrain::report {

/// A writer of a TensorBoard event file (`events.out.tfevents.…`), flushed after each call. A tag
/// names a curve, text or image; slashes group tags. All functions throw UserError (kFailed) if the
/// file cannot be written. Not thread-safe.
class TensorBoardWriter {
 public:
  /// Creates `folder` if necessary, and a new file in it. The run's next step is `resumed_step` +
  /// 1; TensorBoard discards the values of this and later steps in earlier files of the folder.
  TensorBoardWriter(const std::filesystem::path& folder, int64_t resumed_step);

  /// Writes values as float32, the type that TensorBoard stores. NaN and infinities are kept.
  void add_scalars(int64_t step, const std::map<std::string, double>& values_by_tag);
  /// Writes text in Markdown.
  void add_text(int64_t step, std::string_view tag, std::string_view markdown);
  /// Writes an image. `bytes` is the content of a PNG or JPEG file.
  void add_image(int64_t step, std::string_view tag, std::string_view bytes, image::ImageSize size);

  /// Writes the numbers of a step under train/, speed/, memory/, incidents/ and tasks/, and its
  /// evaluation if it has one.
  void add_step(const StepMetrics& metrics);
  /// Writes an evaluation under eval/, with a text if it is the best so far.
  void add_evaluation(int64_t step, const EvaluationMetrics& evaluation);
  /// Writes the answer as text, and the thumbnails and mask overlays as images, under answers/.
  void add_prediction(const Prediction& prediction);

 private:
  void append(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

// The records of an event file. Messages are protocol buffers of TensorFlow's event.proto,
// summary.proto and tensor.proto (tensorboard/compat/proto), framed as in TensorFlow's
// record_writer.h. `time` is Unix time in seconds.

/// Returns the event with which each file begins.
std::string make_version_event(double time);
/// Returns an event that makes TensorBoard discard `step` and later steps (SessionLog.START).
std::string make_session_start_event(double time, int64_t step);
std::string make_scalars_event(double time, int64_t step, const std::map<std::string, double>& values_by_tag);
std::string make_text_event(double time, int64_t step, std::string_view tag, std::string_view markdown);
std::string make_image_event(double time, int64_t step, std::string_view tag, std::string_view bytes,
                             image::ImageSize size);

/// Returns the framed event: its length, the masked CRC of the length, the event, its masked CRC.
std::string make_framed_event(std::string_view event);

/// Returns the CRC-32C (Castagnoli) of RFC 3720, appendix B.4: reflected, polynomial 0x1EDC6F41.
uint32_t compute_crc32c(std::string_view bytes);

}  // namespace vlmtrain::report
