#include "kernels/cpu/vec16_codes_avx512.h"

#include "kernels/cpu/attention_template.h"

namespace smartkv::kernels {

const AttentionKernels kAttentionAvx512{block, merge, mass, promise, greater, gather};

}  // namespace smartkv::kernels
