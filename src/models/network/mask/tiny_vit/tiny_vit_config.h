#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::models {

/// Blocks of one width, between two mergings. The first stage's are convolutions, which have neither heads nor windows.
struct TinyVitStage {
  int64_t width = 0;
  int64_t blocks = 0;
  int64_t heads = 1;
  int64_t window = 1;  ///< rows and columns of the windows in which attention stays
};

/// The settings of a TinyVit; the defaults are MobileSAM's, 6 million parameters.
struct TinyVitConfig {
  std::vector<TinyVitStage> stages{{64, 2, 2, 7}, {128, 2, 4, 7}, {160, 6, 5, 14}, {320, 2, 10, 7}};
  double mlp_ratio = 4;
  double mbconv_expand_ratio = 4;
  int64_t local_conv_size = 3;
  /// Whether the last merging widens only, as MobileSAM has it; the original's halve height and width, all of them.
  bool last_merging_keeps_size = true;
  int64_t image_size = 1024;
  int64_t out_channels = 256;

  /// Keys of the original's code: image_size, embed_dims, depths, num_heads and window_sizes (lists with an entry a
  /// stage), mlp_ratio, mbconv_expand_ratio, local_conv_size; and last_merging_keeps_size and out_channels. Absent
  /// ones have the defaults. data_error names `source` and the key where they make no encoder of stride
  /// MaskEncoder::kStride.
  static TinyVitConfig from_json(const nlohmann::json& json, const std::string& source);

  /// Whether the merging behind this stage halves height and width. REQUIRES: it is not the last stage.
  bool has_downsampling(size_t stage) const { return !last_merging_keeps_size || stage + 2 < stages.size(); }
  int64_t stride() const;  ///< pixels of a picture's side to one feature
  int64_t blocks() const;  ///< of all stages, without mergings
  double num_parameters() const;
  int64_t mlp_features(int64_t width) const { return scale_width(width, mlp_ratio); }
  int64_t expanded_channels(int64_t width) const { return scale_width(width, mbconv_expand_ratio); }

 private:
  static int64_t scale_width(int64_t width, double ratio) {
    return static_cast<int64_t>(static_cast<double>(width) * ratio);  // rounded down
  }
};

}  // namespace vlmtrain::models
