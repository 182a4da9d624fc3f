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

/// An event file of TensorBoard (`events.out.tfevents.…`), flushed after each call. A tag is what a curve, text or
/// picture is called; slashes group them. Errors are run_error. One thread at a time.
class TensorBoard {
 public:
  /// A new file in `folder`, which is made. The run's next step is `resumed_step` + 1: TensorBoard then forgets what
  /// earlier files in the folder say about that step and those behind it.
  TensorBoard(const std::filesystem::path& folder, int64_t resumed_step);

  /// Values as float32, as TensorBoard keeps them; NaN and infinities too.
  void scalars(int64_t step, const std::map<std::string, double>& values_by_tag);
  /// Markdown.
  void text(int64_t step, std::string_view tag, std::string_view markdown);
  /// The bytes of a PNG or JPEG file.
  void image(int64_t step, std::string_view tag, std::string_view bytes, image::ImageSize size);

  /// The step's numbers, under train/, speed/, memory/, incidents/ and tasks/, and its evaluation.
  void step(const StepMetrics& metrics);
  /// Under eval/; where it is the best so far, a text says so.
  void evaluation(int64_t step, const EvaluationMetrics& evaluation);
  /// The answer as text, the thumbnails and the overlays of masks as pictures, under answers/.
  void prediction(const Prediction& prediction);

 private:
  void append(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

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

/// The Castagnoli CRC of RFC 3720, appendix B.4: reflected, polynomial 0x1EDC6F41.
uint32_t crc32c(std::string_view bytes);

}  // namespace vlmtrain::report
