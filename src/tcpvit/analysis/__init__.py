"""What a model costs (paper, Section 5): parameters, FLOPs and memory, by formula and by count.

`count_parameters` and `count_flops` take any model; `predict_parameters` and `predict_flops` a config of ours, and
agree with them to the unit; `EncoderShape` has the paper's own formulas.
"""

from tcpvit.analysis.count import Count, Work
from tcpvit.analysis.flops import count_flops
from tcpvit.analysis.memory import Memory, count_memory
from tcpvit.analysis.orders import compare_orders
from tcpvit.analysis.paper_tables import theory_tables
from tcpvit.analysis.parameters import count_parameters
from tcpvit.analysis.predict import predict_flops, predict_parameters
from tcpvit.analysis.report import Analysis, analyze_model, report_tables
from tcpvit.analysis.theory import EncoderShape, ratio_curves

__all__ = [
    "Analysis",
    "Count",
    "EncoderShape",
    "Memory",
    "Work",
    "analyze_model",
    "compare_orders",
    "count_flops",
    "count_memory",
    "count_parameters",
    "predict_flops",
    "predict_parameters",
    "ratio_curves",
    "report_tables",
    "theory_tables",
]
