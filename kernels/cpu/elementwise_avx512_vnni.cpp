#include "kernels/cpu/vec16_avx512.h"

#include "kernels/cpu/elementwise_template.h"

namespace smartkv::kernels {

const ElementwiseKernels kElementwiseAvx512Vnni{rms_norm_row, rope_heads,     range,        measure_codes,
                                                encode,       measure_levels, encode_levels};

}  // namespace smartkv::kernels
