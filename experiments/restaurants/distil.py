"""Distilling a model that describes restaurants: who writes the text, who scores it, and what labels cost instead.

The card, written before the runs; what is foretold, in numbers, is in distillation_prediction.json.

Question     A student has people's answers for 5 or 20 % of the training meanings, and the others as prompts without
             answers. What is a teacher worth to it, whose text should it learn from, and what should it see of the
             teacher: texts, distributions along them, or scores of the student's own texts?
Arms         labels         cross-entropy with people's answers for the labelled meanings (5, 20, 100 %)
             texts, same    and with four texts of the teacher's for each labelled meaning
             texts          and with a text of the teacher's for each training meaning; texts x4: with four
             distributions  and KL(teacher || student) along the teacher's one text for each training meaning
             top 8          the same, of the teacher's eight largest probabilities and the mass of the rest
             human text     and KL(teacher || student) along people's answers for the labelled meanings
             on-policy      from the student of labels: and a divergence from the teacher along texts that the student
                            writes for any training meaning, by the gradient of the token's divergence: forward,
                            reverse, or Jensen-Shannon
             from labels    "distributions" from the student of labels, the control of on-policy's start
Rivals       1. The gain is that of the answers that the teacher has read: the same student with labels for 20 and
             100 %. 2. It is that of more prompts, or of more text, not of probabilities: "texts" (as many calls of the
             teacher's as "distributions"), "texts x4" (four times as many), "texts, same" (no more prompts). 3. It is
             that of softer targets, not of the teacher's text: "human text". 4. The student of labels is too small, or
             badly regularised: "large", a student of twice the parameters with labels; dropout and the number of steps
             are chosen for each arm. 5. On-policy gains by its longer training: "from labels". 6. Reverse and
             Jensen-Shannon miss fewer slots because they are sharper: the slots of every arm are counted at a
             temperature of one half, too. And the teacher itself stands in the table.
Sees, pays   answers of people; tokens that the teacher writes, tokens that it scores; CPU seconds of training (with
             on-policy's writing and scoring, without the student that it starts from) and of the teacher's part.
             Nobody pays for the teacher's training, which has read all training answers.
Tuned        alike, for each arm and share, at a seed of its own with a teacher of its own and half of the steps: rate
             (factor 2), then dropout (0, .1, .2, .3, .45, .6), by the arm's own objective; then alpha, the weight of
             the teacher's part (.2, .5, .8, .95, 1), by nats on people's answers. Each by steps to the better neighbour
             until both are worse, so that no optimum is at the edge of what was tried, but for dropout 0 and alpha 1.
             At 20 % the rate is that of 5 %. All on 300 validation meanings, one answer each, which no model learns.
Training     batches of 32 texts, half of each kind where there are two; AdamW; a running average of the parameters is
             looked at every 40 steps, by the arm's own objective on validation, and the best look is kept. A student
             stops when nothing has improved for 240 steps or after 800 (on-policy 320, from its start), over whose last
             half the rate falls to zero. Whether that is the end is tried with three times the steps.
Measured     on 400 test meanings, which nobody else has seen: nats a word of people's answers; `gap`, these less the
             mean entropy of the predictions; `ends`, how many ends are expected in an answer, which has one; of four
             texts for each of 200 meanings the length, slots wrong or missing, the share of distinct texts among those
             of a meaning, and of distinct trigrams.
Seeds        eight are planned, each with its own teacher, labelled meanings and initial values. Of one seed all arms
             have the same. Differences are paired; 95 % intervals by Student's t. Order: one seed of every arm, then
             the next, so that whatever is finished can be compared.
"""
