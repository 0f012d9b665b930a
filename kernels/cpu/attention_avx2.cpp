#include "kernels/cpu/vec16_codes_avx2.h"

#include "kernels/cpu/attention_template.h"

namespace smartkv::kernels {

const AttentionKernels kAttentionAvx2{block, merge, mass, promise, greater, gather};

}  // namespace smartkv::kernels
